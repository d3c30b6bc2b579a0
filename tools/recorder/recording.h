// Reads recordings (base/recording.h) and converts them to values. The files may be truncated or damaged, or a process
// may be writing to them. /proc provides the states of the processes that created them.
#pragma once

#include <array>
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

// One operation of a communicator.
struct RecordedCall {
  std::uint64_t number = 0;  // number among all calls that its ring buffer has recorded: 1, 2, 3 ...
  CallTag tag;
  std::int64_t start_ns = 0;  // in nanoseconds since 1970, like all times here
  // Empty if the call is running, if it was so short that its end was not measured, or if it was enqueued on a GPU.
  std::optional<std::int64_t> end_ns{};
  recording::Outcome outcome;
  std::uint64_t bytes = 0;
  std::uint32_t peer = 0;       // for an exchange (sends and receives): the other rank of the transfer in `tag`
  std::uint32_t transfers = 0;  // for an exchange: number of sends and receives
  // For an exchange: its number among those that contain a v-variant; 0: it contains none.
  std::uint64_t variable_call = 0;
  std::uint64_t label = 0;  // CallOptions::label; 0: none

  bool collective() const { return outcome.way != recording::CallPath::kTransfers; }
  bool running() const { return outcome.state == recording::State::kRunning; }
  bool failed() const { return outcome.state == recording::State::kFailed; }
};

// The wait of a rank for other ranks.
struct RecordedWait {
  std::uint64_t number = 0;    // RecordedCall::number of the call in which the rank waits; 0: the call has not begun
  std::uint64_t sequence = 0;  // sequence number of this call among the collectives; 0: an exchange
  std::int64_t since_ns = 0;
  std::int64_t updated_ns = 0;
  std::uint32_t waited_count = 0;
  std::uint32_t absent_count = 0;
  // The ranks for which the rank waits, and the ranks that are known not to have entered the call. Both lists have only
  // the first ranks if there are many; waited_count and absent_count are the full numbers.
  std::vector<std::uint32_t> waited;
  std::vector<std::uint32_t> absent;
  std::string text;
};

// An error of a call or of the whole communicator.
struct RecordedFailure {
  std::int64_t at_ns = 0;
  std::uint64_t sequence = 0;
  ErrorCode code = ErrorCode::kSystem;
  // The rank that caused the error; -1: unknown.
  std::int32_t culprit = -1;
  std::string text;
};

// Sums over the life of a communicator (recording::Totals).
struct RecordedTotals {
  struct Kind {
    std::uint64_t calls = 0;
    std::uint64_t bytes = 0;
    std::uint64_t device_calls = 0;
  };
  std::array<Kind, recording::kTotalKinds> kinds{};            // by CollectiveKind
  std::array<std::uint64_t, recording::kTotalCodes> errors{};  // by ErrorCode
};

// What the rank has counted about one peer (recording::PeerTotals).
struct RecordedPeerTotals {
  std::uint64_t waited_ns = 0;
  std::uint64_t absent_ns = 0;
  // TCP segments that were sent again to the peer; empty: the rank had no TCP connection to it.
  std::optional<std::uint64_t> retransmissions{};
};

// The state of a process. kUnknown: the process is on another machine, or of another boot or process namespace, or that
// cannot be determined.
enum class ProcessState : std::uint8_t { kRunning, kSleeping, kBlocked, kStopped, kDead, kUnknown };

// The content of one file: what one rank of one communicator has recorded.
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
  std::optional<std::int64_t> ended_ns{};    // when the communicator was destroyed
  std::optional<std::int64_t> aborted_ns{};  // when abort() was called on this rank
  // Numbers of operations that were recorded on this communicator: `begun` of those that run on the host, and
  // `device_begun` of those on GPUs.
  std::uint64_t begun = 0;
  std::uint64_t device_begun = 0;
  std::size_t torn = 0;  // number of records that are left out, because they were being written or are invalid
  // The last operations on the host, sorted by number. The file has no space for earlier ones.
  std::vector<RecordedCall> calls;
  std::vector<RecordedCall> device_calls;
  std::optional<RecordedWait> wait{};
  std::optional<RecordedFailure> first_failure{};
  std::optional<RecordedFailure> last_failure{};
  RecordedTotals totals;
  std::vector<RecordedPeerTotals> peer_totals;  // by rank of the communicator
  // Whether the file was written since this machine has started, perhaps by a process in another process namespace.
  bool of_this_machine = false;
  ProcessState process = ProcessState::kUnknown;

  const RecordedCall* last() const { return calls.empty() ? nullptr : &calls.back(); }
  // The oldest running operation, or null.
  const RecordedCall* running() const;
  // The wait, if it belongs to an operation that is still running or has not begun; null if there is no wait, if it is
  // over, or if no call has begun yet.
  const RecordedWait* current_wait() const;
  // The latest collective with this sequence number, or null.
  const RecordedCall* find(std::uint64_t sequence) const;
  bool died() const { return process == ProcessState::kDead && !ended_ns; }
};

// The present time of two clocks of this machine: the CPU's tick counter and the steady clock. ticks is 0 if the
// counter cannot be used, for example for a file from an earlier boot.
struct ClockReading {
  std::uint64_t ticks = 0;
  std::int64_t steady_ns = 0;
};

// Parses the content of a file. `first` and `second` are two copies of the content, made one after the other; they
// differ if a process writes to the file meanwhile. Records that differ are left out and counted in Recording::torn.
// Any content is safe to parse. `now` helps to convert the recorded ticks to times.
Result<Recording> parse_recording(std::span<const std::byte> first, std::span<const std::byte> second,
                                  const ClockReading& now);

// Reads a file. Errors: kSystem (the file cannot be read), kRefused (it is not a recording, is damaged, or has another
// version).
Result<Recording> read_recording(const std::string& path);

// Reads all recordings in the folders, and sorts them by sort_recordings(). Adds a message to `read_errors` for each
// file with the name of a recording that has another content or version. Files that cannot be opened or read, and files
// that were removed meanwhile, are left out without a message.
std::vector<Recording> read_recordings(const std::vector<std::string>& folders, std::vector<std::string>& read_errors);

// Sorts by job, then by communicator (the first communicator of the job before the others), then by rank and process
// id.
void sort_recordings(std::vector<Recording>& recordings);

// Removes recordings so that each rank of a communicator has only one, the newest. Requires sorted recordings.
void keep_newest_of_each_rank(std::vector<Recording>& recordings);

// A call as text, for example "all_reduce #12 (8 float32, sum, ring)" or "send #3 to rank 2 (8 float32)".
std::string describe(const RecordedCall& call);
// The length of a call in bytes: that of the longer one of this rank's input and output. For an exchange: the sum of
// its sends or the sum of its receives, whichever is larger, plus the bytes that the rank copies to itself. 0 if the
// length is unknown, and for a barrier. `one` is the recording that contains the call.
std::uint64_t bytes_of(const RecordedCall& call, const Recording& one);

}  // namespace tutti::tool
