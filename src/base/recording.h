// The layout of a recording: what one rank's flight recorder (runtime/recorder.h) writes of one communicator into a
// mapped file, and `tutti top` and `tutti doctor` read, while the writer lives or after its death. Everything of stated
// width, in the machine's byte order (the magic tells). One thread at a time writes; readers copy twice and compare:
//
//   a record's `serial` is odd while its fields are being replaced, and even once they stand; a copy of which the next
//   copy differs, or with an odd serial, is torn and not used. The same for Live, Failure and Anchor.
//
// File: Header, then `capacity` records of the engine's operations, then `device_capacity` of those that GPUs carry
// out.
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
inline constexpr std::uint32_t kVersion = 1;
inline constexpr std::uint32_t kLeastCapacity = 16;
inline constexpr std::uint32_t kMostCapacity = 65536;
inline constexpr std::size_t kToldRanks = 32;

using Word = std::atomic<std::uint64_t>;  // plain stores on every machine that this runs on
static_assert(Word::is_always_lock_free && sizeof(Word) == 8);

enum class State : std::uint8_t { kEmpty = 0, kRunning, kDone, kFailed, kEnqueued };
// How a call is carried out: values in mailboxes, each other's memory, messages, by a GPU.
enum class Way : std::uint8_t { kMailboxes = 0, kDirect, kMessages, kDevice, kTransfers };

// What the ticks are. kSteadyNs: CLOCK_MONOTONIC.
enum class Ticks : std::uint32_t { kSteadyNs = 1, kCpuCounter = 2 };

// How it went, in one word, so that it is seen whole.
struct Outcome {
  State state = State::kEmpty;
  Way way = Way::kMailboxes;
  std::uint8_t code = 0;   // ErrorCode, if it failed
  std::uint8_t flags = 0;  // kStreamed ...
  std::int32_t culprit = -1;
};
static_assert(sizeof(Outcome) == 8);
inline constexpr std::uint8_t kStreamed = 1;  // begun by a caller's stream
inline constexpr std::uint8_t kSends = 2;     // an exchange whose first transfer is a send
inline constexpr std::uint8_t kUnbegun = 4;   // it failed before it began

// One operation. The first cache line is all that a short call writes.
struct alignas(128) Record {
  Word serial;              // 2 n, of the n-th record of its ring, 1, 2, 3 ...; odd: being written
  Word tag[4];              // a CallTag; of an exchange: the first transfer's, its sequence that of the pair of ranks
  Word start;               // ticks
  Word end;                 // ticks; valid once the outcome is kDone or kFailed
  Word outcome;             // an Outcome
  Word extra_serial;        // = serial where what follows stands
  Word bytes;               // of the caller's input or output, the longer; of an exchange: of all transfers
  Word peer_and_transfers;  // of an exchange: the first transfer's peer, the number of transfers << 32
  Word unused[5];
};
static_assert(sizeof(Record) == 128 && offsetof(Record, extra_serial) == 64);
static_assert(sizeof(CallTag) == 4 * sizeof(Word));

// Two clocks at one time.
struct Anchor {
  Word serial;
  Word ticks;
  Word steady_ns;  // CLOCK_MONOTONIC
  Word unix_ns;    // CLOCK_REALTIME
};
static_assert(sizeof(Anchor) == 32);

// What the operation under way waits for; written while nothing moves only.
struct Live {
  Word serial;
  Word operation;                                // its record's serial; 0: one that has not begun
  Word since;                                    // ticks of the first look that found nothing moving
  Word updated;                                  // ticks of the last one
  Word sequence;                                 // of its call
  std::uint32_t waited_count;                    // ranks that it waits for
  std::uint32_t absent_count;                    // ranks that have not entered the call, as far as is known
  std::array<std::uint32_t, kToldRanks> waited;  // the first of them
  std::array<std::uint32_t, kToldRanks> absent;  // the first of them
  std::array<char, 720> text;                    // in words; ends with a zero
};
static_assert(sizeof(Live) == 5 * 8 + 8 + 256 + 720);

struct Failure {
  Word serial;  // 0: none
  Word ticks;
  Word sequence;  // of the call
  std::uint32_t code;
  std::uint32_t scope;
  std::int32_t culprit;
  std::uint32_t unused;
  std::array<char, 984> text;
};
static_assert(sizeof(Failure) == 1024);

struct alignas(4096) Header {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t header_bytes;
  std::uint32_t record_bytes;
  std::uint32_t capacity;
  std::uint32_t device_capacity;
  Ticks ticks;
  std::uint32_t job;           // the same for all ranks and communicators of a job
  std::uint32_t communicator;  // of the job's first one: = job
  std::uint32_t rank;          // in the communicator
  std::uint32_t ranks;
  std::uint32_t job_rank;
  std::int32_t pid;
  std::uint64_t process_start;  // field 22 of /proc/PID/stat: tells a number that was used again
  std::uint64_t pid_namespace;  // inode of /proc/self/ns/pid; 0: not known
  std::array<char, 40> boot;    // own_boot()
  std::array<char, 64> host;
  std::array<char, 32> program;
  std::array<char, 32> release;  // of Tutti: its version
  std::array<char, 32> transport;
  alignas(64) Word ended;  // ticks; 0: the communicator lives, or its process died
  Word aborted;            // ticks of abort() on this rank; 0: never
  alignas(64) Anchor made;
  Anchor latest;
  alignas(64) Live live;
  Failure first_failure;
  Failure last_failure;
};
static_assert(sizeof(Header) == 4096 && std::is_standard_layout_v<Header>);

constexpr std::size_t file_bytes(std::uint32_t capacity, std::uint32_t device_capacity) {
  return sizeof(Header) + (std::size_t{capacity} + device_capacity) * sizeof(Record);
}

// "tutti-JOB-rRANK-pPID-COMMUNICATOR.rec"; job and communicator as 8 hexadecimal digits. kEndedSuffix takes the place
// of the last part once the communicator has ended well.
inline constexpr std::string_view kSuffix = ".rec";
inline constexpr std::string_view kEndedSuffix = ".end";
std::string file_name(std::uint32_t job, std::uint32_t communicator, std::uint32_t rank, std::int32_t pid);
bool is_recording(std::string_view name);

// Where recordings are looked for, and made in the first that serves: `chosen` alone if it is not empty
// (TUTTI_RECORD_DIR), else folders of this user's; shared memory last, where nothing is to outlive a job.
std::vector<std::string> folders(std::string_view chosen, const EnvironmentVariables& environment);

// A number of 64 bits as one of 32 that does not give it away.
std::uint32_t fold(std::uint64_t id);

// Of a process: field 22 of its /proc/PID/stat; 0: there is none. `state`, if not null: the letter of its state.
std::uint64_t process_start(std::int32_t pid, char* state = nullptr);
std::uint64_t own_pid_namespace();
std::string own_boot();  // boot_id(), or nothing if that is no proof of the same machine

// A counter of the processor that always runs at one rate, if there is one.
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
