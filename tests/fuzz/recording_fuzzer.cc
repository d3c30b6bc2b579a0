// Fuzzes the reader of recordings. For any bytes, reading must end, and the result must be printable and drawable.
// It is built only with TUTTI_FUZZERS (see README.md). Recording.DamagedFilesDoNoHarm is a smaller version in every
// test run.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "tools/recorder/doctor.h"
#include "tools/recorder/flight_dump.h"
#include "tools/recorder/metrics.h"
#include "tools/recorder/recording.h"
#include "tools/recorder/top.h"
#include "tools/recorder/trace.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tutti::tool;
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  constexpr std::int64_t kNowNs = 1'700'000'000'000'000'000;
  const auto read = parse_recording(bytes, bytes, {.ticks = 1'000'000'000, .steady_ns = 500'000'000});
  if (!read) return 0;
  const std::vector<Recording> all{*read, *read};
  if (doctor_report(all, kNowNs).empty() || chrome_trace(all, kNowNs).empty()) std::abort();
  top_table(all, kNowNs);
  if (flight_dumps(std::vector<Recording>{*read}).dumps.size() != 1) std::abort();
  if (metrics_text(all, 0, MetricsFormat::kOpenMetrics, kNowNs).empty()) std::abort();
  return 0;
}
