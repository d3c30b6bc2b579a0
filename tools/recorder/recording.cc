#include "tools/recorder/recording.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <set>
#include <system_error>
#include <tuple>
#include <utility>

#include "base/collective_table.h"
#include "base/printable.h"
#include "plan/buffer_bytes.h"
#include "tools/common/messages.h"
#include "tutti/types.h"

namespace tutti::tool {
namespace {

using recording::Header;
using recording::Record;

constexpr std::uint32_t kMostRanks = 65535;
constexpr std::size_t kMostRecordingBytes =
    recording::file_bytes(recording::kMostCapacity, recording::kMostCapacity, kMostRanks);
constexpr int kTries = 4;  // most tries, each with two copies of the file, to parse it without a torn record
// The rate of the tick counter is calculated from two readings of both clocks, at least this many nanoseconds apart.
constexpr double kLeastBaseNs = 1e6;

Error refused(std::string message) { return {ErrorCode::kRefused, ErrorScope::kCall, -1, std::move(message)}; }

std::uint64_t word_at(std::span<const std::byte> file, std::size_t offset) {
  std::uint64_t word = 0;
  std::memcpy(&word, file.data() + offset, sizeof(word));
  return word;
}

template <class Number>
Number number_at(std::span<const std::byte> file, std::size_t offset) {
  Number number{};
  std::memcpy(&number, file.data() + offset, sizeof(number));
  return number;
}

// Returns the text in the field of `room` bytes at `offset`, up to its first zero byte. Unprintable characters are
// replaced, because the text is printed on terminals.
std::string text_at(std::span<const std::byte> file, std::size_t offset, std::size_t room) {
  const std::string_view text(reinterpret_cast<const char*>(file.data() + offset), room);
  return printable(text.substr(0, text.find('\0')));
}

bool same(std::span<const std::byte> a, std::span<const std::byte> b, std::size_t offset, std::size_t bytes) {
  return std::memcmp(a.data() + offset, b.data() + offset, bytes) == 0;
}

// Converts ticks of the recording's clock to nanoseconds since 1970.
class TickConverter {
 public:
  TickConverter(std::span<const std::byte> file, const ClockReading& now) {
    const std::size_t made = offsetof(Header, made);
    const std::size_t latest = offsetof(Header, latest);
    ticks_ = word_at(file, made + offsetof(recording::Anchor, ticks));
    unix_ns_ = static_cast<double>(number_at<std::int64_t>(file, made + offsetof(recording::Anchor, unix_ns)));
    if (number_at<recording::Ticks>(file, offsetof(Header, ticks)) == recording::Ticks::kSteadyNs) return;
    const auto made_ns = number_at<std::int64_t>(file, made + offsetof(recording::Anchor, steady_ns));
    const auto use = [&](std::uint64_t ticks, std::int64_t steady_ns) {
      // Subtracted as double, because in a damaged file the difference may not fit into 64 bits.
      const double base_ns = static_cast<double>(steady_ns) - static_cast<double>(made_ns);
      if (ticks <= ticks_ || base_ns < kLeastBaseNs) return false;
      ns_per_tick_ = base_ns / static_cast<double>(ticks - ticks_);
      return true;
    };
    if (now.ticks != 0 && use(now.ticks, now.steady_ns)) return;
    if (use(word_at(file, latest + offsetof(recording::Anchor, ticks)),
            number_at<std::int64_t>(file, latest + offsetof(recording::Anchor, steady_ns)))) {
      return;
    }
    // A guess: the counter runs at 2.5 GHz. It is used if no two clock readings are far enough apart, for example
    // because the process ended right after the start.
    ns_per_tick_ = 0.4;
  }
  std::int64_t unix_ns(std::uint64_t ticks) const {
    const double away = static_cast<double>(static_cast<std::int64_t>(ticks - ticks_)) * ns_per_tick_;
    return static_cast<std::int64_t>(std::clamp(unix_ns_ + away, 0.0, 9.0e18));
  }

 private:
  std::uint64_t ticks_ = 0;
  double unix_ns_ = 0;
  double ns_per_tick_ = 1;
};

// True if the fields of the tag that are enumerations (kind, algorithm, type, op) have valid values.
bool plausible(const CallTag& tag) {
  return is_valid(CollectiveKind{tag.kind}) && tag.algorithm <= static_cast<std::uint8_t>(Algorithm::kUser) &&
         (tag.type == kUserTag || is_valid(DataType{tag.type})) && (tag.op == kUserTag || is_valid(ReduceOp{tag.op}));
}

// Parses the record at `offset`, which is entry `place` of its ring buffer. Returns nothing if the record is invalid,
// or was being written when the file was read.
std::optional<RecordedCall> parse_call(std::span<const std::byte> file, std::size_t offset, std::uint64_t place,
                                       std::uint64_t capacity, const TickConverter& times) {
  const auto field = [&](std::size_t at) { return word_at(file, offset + at); };
  const std::uint64_t serial = field(offsetof(Record, serial));
  if (serial % 2 != 0 || serial == 0 || (serial / 2 - 1) % capacity != place) return std::nullopt;
  RecordedCall call;
  call.number = serial / 2;
  std::memcpy(&call.tag, file.data() + offset + offsetof(Record, tag), sizeof(call.tag));
  call.outcome = std::bit_cast<recording::Outcome>(field(offsetof(Record, outcome)));
  const auto state = static_cast<std::uint8_t>(call.outcome.state);
  if (!plausible(call.tag) || state < 1 || state > 4 || static_cast<std::uint8_t>(call.outcome.way) > 4 ||
      call.outcome.code > static_cast<std::uint8_t>(kLastErrorCode)) {
    return std::nullopt;
  }
  call.start_ns = times.unix_ns(field(offsetof(Record, start)));
  const std::uint64_t end = field(offsetof(Record, end));
  const bool ended = call.outcome.state == recording::State::kDone || call.failed();
  if (ended && end != 0) call.end_ns = std::max(times.unix_ns(end), call.start_ns);
  if (field(offsetof(Record, extra_serial)) == serial) {
    call.bytes = field(offsetof(Record, bytes));
    const std::uint64_t both = field(offsetof(Record, peer_and_transfers));
    call.peer = static_cast<std::uint32_t>(both);
    call.transfers = static_cast<std::uint32_t>(both >> 32);
    call.variable_call = field(offsetof(Record, variable_call));
  }
  if (field(offsetof(Record, label_serial)) == serial) call.label = field(offsetof(Record, label));
  return call;
}

// Parses the ring buffer of `capacity` records at `offset`. `first` and `second` are two copies of the file that were
// read one after the other. A record that differs between them was being written. Such records, and invalid ones, are
// left out and counted in `torn`.
std::vector<RecordedCall> parse_ring(std::span<const std::byte> first, std::span<const std::byte> second,
                                     std::size_t offset, std::uint32_t capacity, const TickConverter& times,
                                     std::size_t& torn) {
  std::vector<RecordedCall> calls;
  for (std::uint32_t place = 0; place < capacity; ++place) {
    const std::size_t at = offset + place * sizeof(Record);
    if (word_at(first, at) == 0 && word_at(second, at) == 0) continue;
    auto call = same(first, second, at, sizeof(Record)) ? parse_call(second, at, place, capacity, times) : std::nullopt;
    if (call) calls.push_back(*call);
    if (!call) ++torn;
  }
  std::sort(calls.begin(), calls.end(),
            [](const RecordedCall& a, const RecordedCall& b) { return a.number < b.number; });
  return calls;
}

// True if the structure of `bytes` bytes at `offset` is complete: it is the same in both copies of the file, and its
// serial number (the word at its start) is even and not 0. The writer makes the serial number odd while it writes.
bool is_complete(std::span<const std::byte> first, std::span<const std::byte> second, std::size_t offset,
                 std::size_t bytes) {
  const std::uint64_t serial = word_at(second, offset);
  return serial != 0 && serial % 2 == 0 && same(first, second, offset, bytes);
}

std::optional<RecordedFailure> parse_failure(std::span<const std::byte> first, std::span<const std::byte> second,
                                             std::size_t offset, const TickConverter& times) {
  using recording::Failure;
  if (!is_complete(first, second, offset, sizeof(Failure))) return std::nullopt;
  RecordedFailure failure;
  failure.at_ns = times.unix_ns(word_at(second, offset + offsetof(Failure, ticks)));
  failure.sequence = word_at(second, offset + offsetof(Failure, sequence));
  const auto code = number_at<std::uint32_t>(second, offset + offsetof(Failure, code));
  failure.code = static_cast<ErrorCode>(std::min(code, static_cast<std::uint32_t>(kLastErrorCode)));
  failure.culprit = number_at<std::int32_t>(second, offset + offsetof(Failure, culprit));
  failure.text = text_at(second, offset + offsetof(Failure, text), sizeof(Failure::text));
  return failure;
}

std::optional<RecordedWait> parse_wait(std::span<const std::byte> first, std::span<const std::byte> second,
                                       const TickConverter& times) {
  using recording::WaitState;
  const std::size_t at = offsetof(Header, live);
  if (!is_complete(first, second, at, sizeof(WaitState))) return std::nullopt;
  RecordedWait wait;
  wait.number = word_at(second, at + offsetof(WaitState, operation)) / 2;
  wait.sequence = word_at(second, at + offsetof(WaitState, sequence));
  wait.since_ns = times.unix_ns(word_at(second, at + offsetof(WaitState, since)));
  wait.updated_ns = times.unix_ns(word_at(second, at + offsetof(WaitState, updated)));
  const auto list = [&](std::size_t count_at, std::size_t ranks_at, std::uint32_t& count,
                        std::vector<std::uint32_t>& ranks) {
    count = number_at<std::uint32_t>(second, at + count_at);
    for (std::size_t i = 0; i < std::min<std::size_t>(count, recording::kListedRanks); ++i) {
      ranks.push_back(number_at<std::uint32_t>(second, at + ranks_at + i * sizeof(std::uint32_t)));
    }
  };
  list(offsetof(WaitState, waited_count), offsetof(WaitState, waited), wait.waited_count, wait.waited);
  list(offsetof(WaitState, absent_count), offsetof(WaitState, absent), wait.absent_count, wait.absent);
  wait.text = text_at(second, at + offsetof(WaitState, text), sizeof(WaitState::text));
  return wait;
}

// Each word is written at once, so one copy of the file is sufficient.
RecordedTotals parse_totals(std::span<const std::byte> file) {
  using recording::KindTotal;
  using recording::Totals;
  const std::size_t at = offsetof(Header, totals);
  RecordedTotals totals;
  for (std::size_t i = 0; i < totals.kinds.size(); ++i) {
    const std::size_t host = at + offsetof(Totals, host) + i * sizeof(KindTotal);
    totals.kinds[i].calls = word_at(file, host + offsetof(KindTotal, calls));
    totals.kinds[i].bytes = word_at(file, host + offsetof(KindTotal, bytes));
    totals.kinds[i].device_calls = word_at(file, at + offsetof(Totals, device_calls) + i * sizeof(recording::Word));
  }
  for (std::size_t i = 0; i < totals.errors.size(); ++i) {
    totals.errors[i] = word_at(file, at + offsetof(Totals, errors) + i * sizeof(recording::Word));
  }
  return totals;
}

std::vector<RecordedPeerTotals> parse_peer_totals(std::span<const std::byte> file, std::size_t offset,
                                                  std::uint32_t ranks) {
  using recording::PeerTotals;
  std::vector<RecordedPeerTotals> totals(ranks);
  for (std::size_t i = 0; i < totals.size(); ++i) {
    const std::size_t at = offset + i * sizeof(PeerTotals);
    totals[i] = {.waited_ns = word_at(file, at + offsetof(PeerTotals, waited_ns)),
                 .absent_ns = word_at(file, at + offsetof(PeerTotals, absent_ns))};
    const std::uint64_t plus_1 = word_at(file, at + offsetof(PeerTotals, retransmissions_plus_1));
    if (plus_1 != 0) totals[i].retransmissions = plus_1 - 1;
  }
  return totals;
}

// Returns the state, according to /proc, of the process that wrote the file. Returns kUnknown if it was a process of
// another machine, boot or process namespace, or if that cannot be determined.
ProcessState process_state(std::span<const std::byte> file) {
  const std::string boot = text_at(file, offsetof(Header, boot), sizeof(Header::boot));
  const auto name_space = word_at(file, offsetof(Header, pid_namespace));
  if (boot.empty() || boot != recording::own_boot()) return ProcessState::kUnknown;
  if (name_space != recording::own_pid_namespace()) return ProcessState::kUnknown;
  char state = '?';
  const auto start = recording::process_start(number_at<std::int32_t>(file, offsetof(Header, pid)), &state);
  if (start == 0 || start != word_at(file, offsetof(Header, process_start))) return ProcessState::kDead;
  switch (state) {
    case 'T':
    case 't': return ProcessState::kStopped;
    case 'Z':
    case 'X': return ProcessState::kDead;
    case 'R': return ProcessState::kRunning;
    case 'D': return ProcessState::kBlocked;
    default: return ProcessState::kSleeping;
  }
}

Result<std::vector<std::byte>> copy_of(int fd, const std::string& path) {
  struct stat about {};
  if (fstat(fd, &about) != 0) return cannot_read(path, errno);
  if (!S_ISREG(about.st_mode)) return cannot_read(path, S_ISDIR(about.st_mode) ? EISDIR : EINVAL);
  const auto bytes = static_cast<std::size_t>(about.st_size);
  if (bytes > kMostRecordingBytes) return refused(fmt::format("{} is no recording: it has {} bytes", path, bytes));
  std::vector<std::byte> copy(bytes);
  std::size_t got = 0;
  while (got < bytes) {
    const ssize_t more = pread(fd, copy.data() + got, bytes - got, static_cast<off_t>(got));
    if (more < 0 && errno == EINTR) continue;
    if (more <= 0) break;
    got += static_cast<std::size_t>(more);
  }
  copy.resize(got);
  return copy;
}

}  // namespace

const RecordedCall* Recording::running() const {
  const auto found = std::find_if(calls.begin(), calls.end(), [](const auto& call) { return call.running(); });
  return found == calls.end() ? nullptr : &*found;
}

const RecordedWait* Recording::current_wait() const {
  if (!wait) return nullptr;
  if (wait->number == 0) return last() != nullptr && wait->updated_ns > last()->start_ns ? &*wait : nullptr;
  const bool runs = std::any_of(calls.begin(), calls.end(),
                                [&](const auto& call) { return call.running() && call.number == wait->number; });
  return runs ? &*wait : nullptr;
}

const RecordedCall* Recording::find(std::uint64_t sequence) const {
  const auto found = std::find_if(calls.rbegin(), calls.rend(),
                                  [&](const auto& call) { return call.collective() && call.tag.sequence == sequence; });
  return found == calls.rend() ? nullptr : &*found;
}

Result<Recording> parse_recording(std::span<const std::byte> first, std::span<const std::byte> second,
                                  const ClockReading& now) {
  if (first.size() != second.size() || second.size() < sizeof(Header)) return refused("the file is too short");
  if (word_at(second, offsetof(Header, magic)) != recording::kMagic) {
    return refused("the file is no recording of Tutti's, or was never whole");
  }
  const auto version = number_at<std::uint32_t>(second, offsetof(Header, version));
  if (version != recording::kVersion) {
    return refused(
        fmt::format("the recording has version {}, this tool reads version {}: use the tool of the library "
                    "that wrote it",
                    version, recording::kVersion));
  }
  const auto capacity = number_at<std::uint32_t>(second, offsetof(Header, capacity));
  const auto device_capacity = number_at<std::uint32_t>(second, offsetof(Header, device_capacity));
  const auto ranks = number_at<std::uint32_t>(second, offsetof(Header, ranks));
  if (ranks > kMostRanks) return refused("the recording is damaged: its ranks cannot be right");
  if (capacity == 0 || capacity > recording::kMostCapacity || device_capacity == 0 ||
      device_capacity > recording::kMostCapacity ||
      number_at<std::uint32_t>(second, offsetof(Header, header_bytes)) != sizeof(Header) ||
      number_at<std::uint32_t>(second, offsetof(Header, record_bytes)) != sizeof(Record) ||
      second.size() != recording::file_bytes(capacity, device_capacity, ranks)) {
    return refused("the recording is damaged: its lengths do not fit each other");
  }
  Recording read;
  read.job = number_at<std::uint32_t>(second, offsetof(Header, job));
  read.communicator = number_at<std::uint32_t>(second, offsetof(Header, communicator));
  read.rank = number_at<std::uint32_t>(second, offsetof(Header, rank));
  read.ranks = ranks;
  read.job_rank = number_at<std::uint32_t>(second, offsetof(Header, job_rank));
  read.pid = number_at<std::int32_t>(second, offsetof(Header, pid));
  if (read.rank >= read.ranks || read.pid <= 0) {
    return refused("the recording is damaged: its ranks cannot be right");
  }
  read.host = text_at(second, offsetof(Header, host), sizeof(Header::host));
  read.program = text_at(second, offsetof(Header, program), sizeof(Header::program));
  read.release = text_at(second, offsetof(Header, release), sizeof(Header::release));
  read.transport = text_at(second, offsetof(Header, transport), sizeof(Header::transport));
  const std::string boot = text_at(second, offsetof(Header, boot), sizeof(Header::boot));
  read.of_this_machine = !boot.empty() && boot == recording::own_boot();
  const TickConverter times(second, read.of_this_machine ? now : ClockReading{});
  const auto time_at = [&](std::size_t offset) -> std::optional<std::int64_t> {
    const std::uint64_t ticks = word_at(second, offset);
    return ticks == 0 ? std::nullopt : std::optional(times.unix_ns(ticks));
  };
  read.made_ns = times.unix_ns(word_at(second, offsetof(Header, made) + offsetof(recording::Anchor, ticks)));
  read.ended_ns = time_at(offsetof(Header, ended));
  read.aborted_ns = time_at(offsetof(Header, aborted));
  read.calls = parse_ring(first, second, sizeof(Header), capacity, times, read.torn);
  read.device_calls = parse_ring(first, second, sizeof(Header) + std::size_t{capacity} * sizeof(Record),
                                 device_capacity, times, read.torn);
  read.begun = read.calls.empty() ? 0 : read.calls.back().number;
  read.device_begun = read.device_calls.empty() ? 0 : read.device_calls.back().number;
  read.wait = parse_wait(first, second, times);
  read.first_failure = parse_failure(first, second, offsetof(Header, first_failure), times);
  read.last_failure = parse_failure(first, second, offsetof(Header, last_failure), times);
  read.totals = parse_totals(second);
  read.peer_totals = parse_peer_totals(second, recording::peer_totals_offset(capacity, device_capacity), ranks);
  read.process = process_state(second);
  return read;
}

Result<Recording> read_recording(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    return cannot_open(path, errno);
  }
  Result<Recording> read = refused("");
  for (int turn = 0; turn < kTries; ++turn) {
    auto first = copy_of(fd, path);
    auto second = copy_of(fd, path);
    if (!first || !second) {
      read = first ? second.error() : first.error();
      break;
    }
    const auto counter = recording::has_cpu_counter() ? recording::cpu_counter() : 0;
    read = parse_recording(*first, *second, {.ticks = counter, .steady_ns = recording::steady_ns()});
    if (read && read->torn == 0) break;
  }
  close(fd);
  // The message of a kSystem error already contains the file's name.
  if (!read && read.error().code == ErrorCode::kSystem) return read.error();
  if (!read) return refused(fmt::format("{}: {}", path, read.error().message));
  read->path = path;
  return read;
}

std::vector<Recording> read_recordings(const std::vector<std::string>& folders, std::vector<std::string>& read_errors) {
  std::vector<Recording> recordings;
  // The folders that were read. They are compared by their canonical paths, because two names, for example one from
  // TMPDIR, may lead to the same folder.
  std::set<std::filesystem::path> seen;
  for (const std::string& folder : folders) {
    std::error_code error;
    if (const auto path = std::filesystem::canonical(folder, error); error || !seen.insert(path).second) continue;
    for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
         entry.increment(error)) {
      const std::string path = entry->path().string();
      if (!recording::is_recording(entry->path().filename().string())) continue;
      auto read = read_recording(path);
      if (read) {
        recordings.push_back(*std::move(read));
      } else if (read.error().code == ErrorCode::kRefused && access(path.c_str(), F_OK) == 0) {
        read_errors.push_back(read.error().message);
      }
    }
  }
  sort_recordings(recordings);
  return recordings;
}

void sort_recordings(std::vector<Recording>& recordings) {
  std::sort(recordings.begin(), recordings.end(), [](const Recording& a, const Recording& b) {
    // A job's first communicator has the same number as the job. It comes before the other ones.
    const auto place = [](const Recording& one) {
      return std::tuple(one.job, one.communicator != one.job, one.communicator, one.rank, one.pid);
    };
    return place(a) < place(b);
  });
}

void keep_newest_of_each_rank(std::vector<Recording>& recordings) {
  std::vector<Recording> newest;
  for (Recording& one : recordings) {
    const bool again = !newest.empty() && newest.back().job == one.job &&
                       newest.back().communicator == one.communicator && newest.back().rank == one.rank;
    if (!again) {
      newest.push_back(std::move(one));
    } else if (newest.back().made_ns < one.made_ns) {
      newest.back() = std::move(one);
    }
  }
  recordings = std::move(newest);
}

std::string describe(const RecordedCall& call) {
  if (call.collective()) return tutti::describe(call.tag);
  const bool sends = (call.outcome.flags & recording::kSends) != 0;
  const bool plain = call.tag.kind == static_cast<std::uint8_t>(CollectiveKind::kSendReceive);
  std::string text = fmt::format(
      "{}{} #{} {} rank {} ({} {})", plain ? "" : fmt::format("{}_v, ", to_string(CollectiveKind{call.tag.kind})),
      sends ? "send" : "receive", call.tag.sequence, sends ? "to" : "from", call.peer, call.tag.count,
      call.tag.type == kUserTag ? "elements" : to_string(DataType{call.tag.type}));
  if (call.transfers > 1) text += fmt::format(" and {} other transfers", call.transfers - 1);
  return text;
}

std::uint64_t bytes_of(const RecordedCall& call, const Recording& one) {
  if (call.bytes != 0 || !call.collective()) return call.bytes;
  const CollectiveKind kind{call.tag.kind};
  if (!row_of(kind).has_data || call.tag.type == kUserTag) return 0;
  return longer_buffer_bytes({.kind = kind, .ranks = one.ranks, .root = call.tag.root}, one.rank,
                             call.tag.count * size_of(DataType{call.tag.type}));
}

}  // namespace tutti::tool
