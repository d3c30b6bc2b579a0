#include "job/recorder.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <fstream>
#include <utility>

#include "base/assert.h"
#include "base/exceptions.h"
#include "tutti/collectives.h"
#include "tutti/version.h"

namespace tutti {
namespace {

using recording::Failure;
using recording::Header;
using recording::Record;
using recording::WaitState;

static_assert(kCollectiveTable.size() <= recording::kTotalKinds);
static_assert(static_cast<std::size_t>(kLastErrorCode) < recording::kTotalCodes);

std::uint32_t device_capacity_of(std::uint32_t capacity) { return std::max(capacity / 4, recording::kLeastCapacity); }

template <std::size_t kRoom>
void copy_text(std::array<char, kRoom>& to, std::string_view text) {
  const std::size_t length = std::min(text.size(), kRoom - 1);
  std::copy_n(text.data(), length, to.data());
  std::fill(to.begin() + static_cast<std::ptrdiff_t>(length), to.end(), '\0');
}

std::string own_program() {
  std::ifstream file("/proc/self/comm");
  std::string line;
  std::getline(file, line);
  return line;
}

// A sequence lock for one writer. Readers take the data that is written while this object exists either completely or
// not at all.
template <class Block>
class SequenceLock {
 public:
  explicit SequenceLock(Block& block) : block_(block), serial_(block.serial.load(std::memory_order_relaxed)) {
    block_.serial.store(serial_ + 1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
  }
  ~SequenceLock() { block_.serial.store(serial_ + 2, std::memory_order_release); }
  SequenceLock(const SequenceLock&) = delete;
  SequenceLock& operator=(const SequenceLock&) = delete;

 private:
  Block& block_;
  const std::uint64_t serial_;
};

void write_failure(Failure& failure, const Error& error, std::uint64_t sequence, std::uint64_t ticks) {
  const SequenceLock lock(failure);
  failure.ticks.store(ticks, std::memory_order_relaxed);
  failure.sequence.store(sequence, std::memory_order_relaxed);
  failure.code = static_cast<std::uint32_t>(error.code);
  failure.scope = static_cast<std::uint32_t>(error.scope);
  failure.culprit = error.rank;
  copy_text(failure.text, error.message);
}

}  // namespace

std::unique_ptr<Recorder> Recorder::create(const std::shared_ptr<RecordingFolder>& folder,
                                           const RecorderOptions& options) {
  TUTTI_ASSERT(std::has_single_bit(options.capacity));
  const std::uint32_t job = recording::fold(options.job);
  std::string name = recording::file_name(job, recording::fold(options.communicator), options.rank, getpid());
  auto file =
      folder->make(name, recording::file_bytes(options.capacity, device_capacity_of(options.capacity), options.ranks));
  if (file == nullptr) return nullptr;
  try {
    std::unique_ptr<Recorder> recorder(
        // The constructor is private, so make_unique cannot be used.
        new Recorder(folder, std::move(file), name, options));
    recorder->fill(options);
    return recorder;
  } catch (...) {
    folder->discard(name);
    throw;
  }
}

Recorder::Recorder(std::shared_ptr<RecordingFolder> folder, std::unique_ptr<MappedRecording> file, std::string name,
                   const RecorderOptions& options)
    : folder_(std::move(folder)),
      file_(std::move(file)),
      name_(std::move(name)),
      header_(reinterpret_cast<Header*>(file_->data())),
      records_(reinterpret_cast<Record*>(file_->data() + sizeof(Header))),
      mask_(options.capacity - 1),
      device_records_(records_ + options.capacity),
      device_mask_(device_capacity_of(options.capacity) - 1),
      peer_totals_(reinterpret_cast<recording::PeerTotals*>(device_records_ + device_mask_ + 1), options.ranks),
      ticks_(recording::has_cpu_counter() ? recording::Ticks::kCpuCounter : recording::Ticks::kSteadyNs),
      process_(getpid()) {}

Recorder::~Recorder() {
  if (getpid() != process_) return;  // in a forked child the mapped file belongs to the parent
  if (header_->magic == 0) return;   // fill() has failed, and create() removes the file
  set_anchor();
  header_->ended.store(now(), std::memory_order_release);
  // If there is no memory for the new name, the file keeps the old one. Its header still records that the
  // communicator has ended.
  if (!ended_badly_) runs_through([this] { folder_->mark_completed(name_); });
}

// The magic number is written last, so a file without it is incomplete.
void Recorder::fill(const RecorderOptions& options) {
  Header& header = *header_;
  header.version = recording::kVersion;
  header.header_bytes = sizeof(Header);
  header.record_bytes = sizeof(Record);
  header.capacity = static_cast<std::uint32_t>(mask_ + 1);
  header.device_capacity = static_cast<std::uint32_t>(device_mask_ + 1);
  header.ticks = ticks_;
  header.job = recording::fold(options.job);
  header.communicator = recording::fold(options.communicator);
  header.rank = options.rank;
  header.ranks = options.ranks;
  header.job_rank = options.job_rank;
  header.pid = getpid();
  header.process_start = recording::process_start(header.pid);
  header.pid_namespace = recording::own_pid_namespace();
  copy_text(header.boot, recording::own_boot());
  std::array<char, 64> host{};
  if (gethostname(host.data(), host.size() - 1) == 0) header.host = host;
  copy_text(header.program, own_program());
  copy_text(header.release, version());
  copy_text(header.transport, options.transport);
  set_anchor();
  header.made.ticks.store(header.latest.ticks.load());
  header.made.steady_ns.store(header.latest.steady_ns.load());
  header.made.unix_ns.store(header.latest.unix_ns.load());
  header.made.serial.store(2);
  std::atomic_thread_fence(std::memory_order_release);
  header.magic = recording::kMagic;
}

void Recorder::set_anchor() {
  recording::Anchor& anchor = header_->latest;
  const SequenceLock lock(anchor);
  anchor.steady_ns.store(static_cast<std::uint64_t>(recording::steady_ns()), std::memory_order_relaxed);
  anchor.ticks.store(now(), std::memory_order_relaxed);
  anchor.unix_ns.store(static_cast<std::uint64_t>(recording::unix_ns()), std::memory_order_relaxed);
}

void Recorder::add(std::uint64_t serial, const Details& details) {
  Record& record = record_at(serial);
  record.bytes.store(details.bytes, std::memory_order_relaxed);
  record.peer_and_transfers.store(details.peer | std::uint64_t{details.transfers} << 32, std::memory_order_relaxed);
  record.variable_call.store(details.variable_call, std::memory_order_relaxed);
  record.extra_serial.store(serial, std::memory_order_release);
}

void Recorder::end_badly(std::uint64_t serial, const Error& error, std::uint64_t sequence) {
  failed(error, sequence);
  Record& record = record_at(serial);
  if (record.serial.load(std::memory_order_relaxed) != serial) return;
  record.end.store(now(), std::memory_order_relaxed);
  auto outcome = std::bit_cast<recording::Outcome>(record.outcome.load(std::memory_order_relaxed));
  outcome.state = recording::State::kFailed;
  outcome.code = static_cast<std::uint8_t>(error.code);
  outcome.culprit = error.rank;
  record.outcome.store(std::bit_cast<std::uint64_t>(outcome), std::memory_order_release);
}

void Recorder::failed(const Error& error, std::uint64_t sequence) {
  ended_badly_ = true;
  set_anchor();
  const std::uint64_t ticks = now();
  if (header_->first_failure.serial.load(std::memory_order_relaxed) == 0) {
    write_failure(header_->first_failure, error, sequence, ticks);
  }
  write_failure(header_->last_failure, error, sequence, ticks);
  add_to(header_->totals.errors[static_cast<std::size_t>(error.code)], 1);
}

// Only samples that follow each other in one wait add time. So a wait counts from its first sample on.
void Recorder::add_to_waits(const Wait& wait, std::int64_t waited_ns) {
  const auto ns = static_cast<std::uint64_t>(std::clamp(waited_ns, std::int64_t{0}, kMostWaitStepNs));
  for (const std::uint32_t peer : wait.waited) {
    TUTTI_ASSERT(peer < peer_totals_.size());
    add_to(peer_totals_[peer].waited_ns, ns);
  }
  for (const std::uint32_t peer : wait.absent) {
    TUTTI_ASSERT(peer < peer_totals_.size());
    add_to(peer_totals_[peer].absent_ns, ns);
  }
}

void Recorder::waits(const Wait& wait, std::int64_t now_ns) {
  const std::int64_t since_last_ns = now_ns - std::exchange(last_wait_ns_, now_ns);
  set_anchor();
  WaitState& live = header_->live;
  const SequenceLock lock(live);
  const std::uint64_t ticks = now();
  if (wait.serial != waiting_serial_ || wait.sequence != waiting_sequence_) {
    live.since.store(ticks, std::memory_order_relaxed);
    waiting_serial_ = wait.serial;
    waiting_sequence_ = wait.sequence;
  } else {
    add_to_waits(wait, since_last_ns);
  }
  live.operation.store(wait.serial, std::memory_order_relaxed);
  live.sequence.store(wait.sequence, std::memory_order_relaxed);
  live.updated.store(ticks, std::memory_order_relaxed);
  const auto list = [](std::uint32_t& count, auto& to, std::span<const std::uint32_t> ranks) {
    count = static_cast<std::uint32_t>(ranks.size());
    std::copy_n(ranks.begin(), std::min(ranks.size(), to.size()), to.begin());
  };
  list(live.waited_count, live.waited, wait.waited);
  list(live.absent_count, live.absent, wait.absent);
  copy_text(live.text, wait.text);
}

void Recorder::enqueued(const CallTag& tag, std::uint64_t label) {
  const std::uint64_t serial = next_device_ += 2;
  Record& record = device_records_[(serial / 2 - 1) & device_mask_];
  open(record, serial);
  write(record, tag, {.state = recording::State::kEnqueued, .way = recording::CallPath::kDevice});
  if (label != 0) set_label_of(record, serial, label);
  record.serial.store(serial, std::memory_order_release);
  add_to(header_->totals.device_calls[tag.kind], 1);
}

}  // namespace tutti
