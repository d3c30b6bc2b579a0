// Recordings (base/recording.h) as values: read from files that may be cut, damaged or written to at this moment, and
// what /proc says of the processes that made them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/call_tag.h"
#include "base/recording.h"
#include "tutti/result.h"

namespace tutti::tool {

struct RecordedCall {
  std::uint64_t number = 0;  // of its ring, 1, 2, 3 ...
  CallTag tag;
  std::int64_t start_ns = 0;             // since 1970
  std::optional<std::int64_t> end_ns{};  // none: it runs, or was so quick that its end was not looked at
  recording::Outcome outcome;
  std::uint64_t bytes = 0;
  std::uint32_t peer = 0;       // of an exchange
  std::uint32_t transfers = 0;  // likewise

  bool collective() const { return outcome.way != recording::Way::kTransfers; }
  bool running() const { return outcome.state == recording::State::kRunning; }
  bool failed() const { return outcome.state == recording::State::kFailed; }
};

struct RecordedWait {
  std::uint64_t number = 0;    // of the call; 0: one that has not begun
  std::uint64_t sequence = 0;  // its number among the collectives; 0: an exchange
  std::int64_t since_ns = 0;
  std::int64_t updated_ns = 0;
  std::uint32_t waited_count = 0;
  std::uint32_t absent_count = 0;
  std::vector<std::uint32_t> waited;  // the first of them
  std::vector<std::uint32_t> absent;
  std::string text;
};

struct RecordedFailure {
  std::int64_t at_ns = 0;
  std::uint64_t sequence = 0;
  ErrorCode code = ErrorCode::kSystem;
  std::int32_t culprit = -1;
  std::string text;
};

// What becomes of a process. kElsewhere: of another machine, boot or name space of processes, where nothing is known.
enum class ProcessState : std::uint8_t { kRunning, kSleeping, kBlocked, kStopped, kDead, kElsewhere };

struct Recording {
  std::string path;
  std::uint32_t job = 0;
  std::uint32_t communicator = 0;
  std::uint32_t rank = 0;
  std::uint32_t ranks = 1;
  std::uint32_t job_rank = 0;
  std::int32_t pid = 0;
  std::string host;
  std::string program;
  std::string release;
  std::string transport;
  std::int64_t made_ns = 0;
  std::optional<std::int64_t> ended_ns{};    // the communicator was destroyed
  std::optional<std::int64_t> aborted_ns{};  // abort() was called on this rank
  std::uint64_t begun = 0;                   // operations, ever
  std::uint64_t device_begun = 0;
  std::size_t torn = 0;             // records that were being written, or make no sense
  std::vector<RecordedCall> calls;  // the last ones, by number
  std::vector<RecordedCall> device_calls;
  std::optional<RecordedWait> wait{};
  std::optional<RecordedFailure> first_failure{};
  std::optional<RecordedFailure> last_failure{};
  ProcessState process = ProcessState::kElsewhere;

  const RecordedCall* last() const { return calls.empty() ? nullptr : &calls.back(); }
  // The oldest operation under way; null: none is.
  const RecordedCall* running() const;
  // The wait, if the operation under way is the one that it speaks of.
  const RecordedWait* current_wait() const;
  const RecordedCall* find(std::uint64_t sequence) const;
  bool died() const { return process == ProcessState::kDead && !ended_ns; }
};

// What a file holds, from two copies made one after the other (both the same where nobody writes): whatever the bytes
// are, every number is in bounds. `now_ticks`, `now_steady_ns`: this machine's, for files of this boot; 0: leave them.
struct Now {
  std::uint64_t ticks = 0;
  std::int64_t steady_ns = 0;
};
Result<Recording> parse_recording(std::span<const std::byte> first, std::span<const std::byte> second, const Now& now);

// Errors: kSystem (the file), kRefused (it is no recording, or of another version).
Result<Recording> read_recording(const std::string& path);

// All recordings of the folders, those that end while they are read left out. What cannot be read is said in
// `troubles`.
std::vector<Recording> read_recordings(const std::vector<std::string>& folders, std::vector<std::string>& troubles);

// By job, communicator and rank.
void sort_recordings(std::vector<Recording>& recordings);

// "all_reduce #12 (8 float32, sum, ring)", "send #3 to rank 2 (8 float32)"
std::string describe(const RecordedCall& call);
// Of input or output, the longer, per call; of an exchange: of all transfers.
std::uint64_t bytes_of(const RecordedCall& call, std::uint32_t ranks);

}  // namespace tutti::tool
