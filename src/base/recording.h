// The file format of a recording. The flight recorder of one rank (job/recorder.h) writes the operations of one
// communicator to a mapped file. `tutti top` and `tutti doctor` read it, while the rank runs or after its process has
// ended. All fields have a fixed width and the byte order of the machine, which a reader detects from kMagic.
//
// One thread at a time writes the records of the host, and one thread at a time writes the records of GPUs. A record's
// `serial` is odd while the fields from `tag` to `outcome` are being replaced by those of a new operation, and even
// when they are complete. While `serial` is even, the fields from `extra_serial` on may be written, and `end` and
// `outcome` change at the end of the operation. Readers copy a record twice. A copy is torn and is not used if its
// serial is odd, or if the second copy differs. The same applies to WaitState, Failure and Anchor.
//
// Layout: a Header, then `capacity` records of operations that run on the host, then `device_capacity` records of
// operations that run on GPUs, then one PeerTotals for each rank of the communicator.
//
// Records are overwritten by later ones. Totals and PeerTotals count from the start of the communicator, and never
// decrease.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/call_tag.h"
#include "base/config.h"

namespace tutti::recording {

inline constexpr std::uint64_t kMagic = 0x31'63'65'72'74'75'74'54;  // "Ttutrec1" in a little-endian file
inline constexpr std::uint32_t kVersion = 3;
inline constexpr std::uint32_t kLeastCapacity = 16;
inline constexpr std::uint32_t kMostCapacity = 65536;
inline constexpr std::size_t kListedRanks = 32;
inline constexpr std::size_t kTotalKinds = 12;  // CollectiveKind has 10 values so far
inline constexpr std::size_t kTotalCodes = 16;  // ErrorCode has 12 values so far

using Word = std::atomic<std::uint64_t>;  // relaxed accesses are ordinary loads and stores on all supported machines
static_assert(Word::is_always_lock_free && sizeof(Word) == 8);

enum class State : std::uint8_t { kEmpty = 0, kRunning, kDone, kFailed, kEnqueued };
// How an operation is carried out, as far as it is known before its start: inline values in mailboxes, direct access to
// each other's memory (single copy; by messages instead if some rank's memory cannot be used), messages of a plan, on a
// GPU, or as sends and receives.
enum class CallPath : std::uint8_t { kMailboxes = 0, kDirect, kMessages, kDevice, kTransfers };

// The unit of time stamps: nanoseconds of CLOCK_MONOTONIC, or ticks of the processor's counter.
enum class Ticks : std::uint32_t { kSteadyNs = 1, kCpuCounter = 2 };

// The outcome of an operation, in one 64-bit word, so that a reader never sees a part of it.
struct Outcome {
  State state = State::kEmpty;
  CallPath way = CallPath::kMailboxes;
  std::uint8_t code = 0;      // ErrorCode, if the operation failed
  std::uint8_t flags = 0;     // a combination of the bits kStreamed, kSends and kNotStarted
  std::int32_t culprit = -1;  // the rank that caused the failure; -1: unknown
};
static_assert(sizeof(Outcome) == 8);
inline constexpr std::uint8_t kStreamed = 1;    // the operation was started by the caller's CUDA stream
inline constexpr std::uint8_t kSends = 2;       // an exchange of which the described transfer (see Record) is a send
inline constexpr std::uint8_t kNotStarted = 4;  // the operation failed before it started

// One operation. The first cache line is written for every operation. The second one is written for exchanges, for a
// collective on the host whose length does not follow from its tag (a UserReduction, a v-variant, a segment of a long
// call), and for a call with a label. The record of an exchange (a group of sends and receives) describes one transfer:
// the first one that belongs to a v-variant or, if there is none, the first one. But its field `bytes` counts all
// transfers: it is the larger one of all bytes sent and all bytes received, plus the bytes that the rank copies from
// itself to itself.
struct alignas(128) Record {
  Word serial;              // 2 n for the n-th operation written to its ring, n = 1, 2, 3, ...; odd: being written
  Word tag[4];              // a CallTag; for an exchange: the tag of the transfer that is described
  Word start;               // ticks at the start of the operation
  Word end;                 // ticks at its end; valid if the outcome is kDone or kFailed
  Word outcome;             // an Outcome
  Word extra_serial;        // equal to `serial` if the next three fields are valid
  Word bytes;               // the longer of input and output (of this segment); for an exchange: see above
  Word peer_and_transfers;  // for an exchange: peer of this transfer | number of transfers << 32
  Word variable_call;       // for an exchange: Operation::variable_call
  Word label_serial;        // equal to `serial` if the next field is valid
  Word label;               // CallOptions::label, not 0
  Word unused[2];
};
static_assert(sizeof(Record) == 128 && offsetof(Record, extra_serial) == 64);
static_assert(sizeof(CallTag) == 4 * sizeof(Word));

// The readings of all clocks at one moment, to convert ticks to time.
struct Anchor {
  Word serial;
  Word ticks;
  Word steady_ns;  // CLOCK_MONOTONIC
  Word unix_ns;    // CLOCK_REALTIME
};
static_assert(sizeof(Anchor) == 32);

// The ranks for which the current operation waits. Written now and then while the operation makes no progress.
struct WaitState {
  Word serial;
  Word operation;                                  // serial of the operation's record; 0: it has not started
  Word since;                                      // ticks of the first entry about this wait
  Word updated;                                    // ticks of the latest entry about this wait
  Word sequence;                                   // sequence number of the collective; 0: an exchange
  std::uint32_t waited_count;                      // number of ranks for which the operation waits
  std::uint32_t absent_count;                      // number of ranks that are known not to have entered this call
  std::array<std::uint32_t, kListedRanks> waited;  // the first kListedRanks of the waited_count ranks
  std::array<std::uint32_t, kListedRanks> absent;  // the first kListedRanks of the absent_count ranks
  std::array<char, 720> text;                      // description for people, zero-terminated
};
static_assert(sizeof(WaitState) == 5 * 8 + 8 + 256 + 720);

// An error of an operation.
struct Failure {
  Word serial;  // 0: there was no failure
  Word ticks;
  Word sequence;  // sequence number of the collective; 0: the failure is not one of a collective
  std::uint32_t code;
  std::uint32_t scope;
  std::int32_t culprit;
  std::uint32_t unused;
  std::array<char, 984> text;
};
static_assert(sizeof(Failure) == 1024);

// Calls and bytes of one kind of call on the host.
struct KindTotal {
  // Calls that have begun, and collectives that have failed before they began. The segments of a long call count as one
  // call, and so does a group of sends and receives.
  Word calls;
  Word bytes;  // the sum of their lengths, each the longer one of this rank's input and output
};

// `host` and `errors` belong to the thread that writes the records of the host, `device_calls` to the one that writes
// the records of GPUs. So adding to a word needs no atomic read-modify-write.
struct Totals {
  std::array<KindTotal, kTotalKinds> host;     // by CollectiveKind; sends and receives are of kSendReceive
  std::array<Word, kTotalKinds> device_calls;  // by CollectiveKind; the calls that were enqueued on a GPU
  std::array<Word, kTotalCodes> errors;        // by ErrorCode
};
static_assert(sizeof(Totals) == 8 * (3 * kTotalKinds + kTotalCodes));

// What this rank has counted about one other rank. Waits are in nanoseconds. They are sampled every 50 ms, and a wait
// counts from its first sample, so a wait of less than 50 to 100 ms may not count.
struct PeerTotals {
  Word waited_ns;  // time in which an operation made no progress and waited for this peer
  Word absent_ns;  // time in which an operation made no progress and this peer had not entered the call
  // 1 + the number of TCP segments that the kernel of this rank has sent again on the connections to this peer.
  // 0: no such connection was seen. Sampled about once per second, see Transport::count_retransmissions().
  Word retransmissions_plus_1;
};
static_assert(sizeof(PeerTotals) == 24);

struct alignas(4096) Header {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t header_bytes;
  std::uint32_t record_bytes;
  std::uint32_t capacity;
  std::uint32_t device_capacity;
  Ticks ticks;
  std::uint32_t job;           // a number that is the same for all ranks and communicators of a job
  std::uint32_t communicator;  // a number of the communicator; equal to `job` for the job's first one
  std::uint32_t rank;          // number of this rank in the communicator
  std::uint32_t ranks;         // size of the communicator
  std::uint32_t job_rank;      // number of this rank in the job's first communicator
  std::int32_t pid;
  std::uint64_t process_start;  // field 22 of /proc/PID/stat: detects that the pid is used by another process
  std::uint64_t pid_namespace;  // inode of /proc/self/ns/pid; 0: unknown
  std::array<char, 40> boot;    // own_boot()
  std::array<char, 64> host;
  std::array<char, 32> program;
  std::array<char, 32> release;  // version of Tutti
  std::array<char, 32> transport;
  alignas(64) Word ended;  // ticks at the end of the communicator; 0: it still exists, or its process died before
  Word aborted;            // ticks of abort() on this rank; 0: not called
  alignas(64) Anchor made;
  Anchor latest;
  alignas(64) WaitState live;
  Failure first_failure;
  Failure last_failure;
  alignas(64) Totals totals;
};
static_assert(sizeof(Header) == 4096 && std::is_standard_layout_v<Header>);

constexpr std::size_t peer_totals_offset(std::uint32_t capacity, std::uint32_t device_capacity) {
  return sizeof(Header) + (std::size_t{capacity} + device_capacity) * sizeof(Record);
}
constexpr std::size_t file_bytes(std::uint32_t capacity, std::uint32_t device_capacity, std::uint32_t ranks) {
  return peer_totals_offset(capacity, device_capacity) + ranks * sizeof(PeerTotals);
}

// file_name() returns "tutti-JOB-rRANK-pPID-COMMUNICATOR.rec", with job and communicator as 8 hexadecimal digits.
// When the communicator has ended without an error, the file is renamed and kEndedSuffix replaces kSuffix.
inline constexpr std::string_view kSuffix = ".rec";
inline constexpr std::string_view kEndedSuffix = ".end";
std::string file_name(std::uint32_t job, std::uint32_t communicator, std::uint32_t rank, std::int32_t pid);
bool is_recording(std::string_view name);

// The folders in which readers search for recordings. A recorder writes to the first one that is usable. The list is
// only `chosen` (TUTTI_RECORD_DIR) if that is not empty, otherwise folders of this user. Shared memory (/dev/shm) comes
// last, because files should not remain there after a job.
std::vector<std::string> folders(std::string_view chosen, const EnvironmentVariables& environment);

// Maps a 64-bit id to a 32-bit number from which the id cannot be computed.
std::uint32_t fold(std::uint64_t id);

// Returns the start time of a process (field 22 of /proc/PID/stat), or 0 if it cannot be read, for example because the
// process does not exist. If `state` is not null and the process exists, it gets the letter of the process state.
std::uint64_t process_start(std::int32_t pid, char* state = nullptr);
std::uint64_t own_pid_namespace();
// boot_id().name. Empty if boot_id() fails, or if equal names do not prove that two processes are on the same machine.
std::string own_boot();

// Whether the processor has a time counter with a constant rate, which cpu_counter() then reads.
bool has_cpu_counter();
std::int64_t steady_ns();
std::int64_t unix_ns();
inline std::uint64_t cpu_counter() {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
  std::uint64_t counter = 0;
  asm volatile("mrs %0, cntvct_el0" : "=r"(counter));
  return counter;
#else
  return static_cast<std::uint64_t>(steady_ns());
#endif
}
inline std::uint64_t read_ticks(Ticks ticks) {
  return ticks == Ticks::kCpuCounter ? cpu_counter() : static_cast<std::uint64_t>(steady_ns());
}

}  // namespace tutti::recording
