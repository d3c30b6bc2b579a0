// Recorder: the flight recorder of one rank in one communicator. It records the last operations, the ranks for which
// this rank waits, and its first and last failure, in a mapped file (base/recording.h) that remains after the process
// has exited. A problem with the recording does not make a call fail.
//
// Threads: enqueued() is called with the submission mutex held. Any thread may call now() and aborted(). The other
// functions, except create() and the destructor, belong to one thread at a time: the engine's driver or, at the start
// and end of a short call (engine/short_calls.h), the calling thread, which then holds the engine's mutex.
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/assert.h"
#include "base/call_tag.h"
#include "base/recording.h"
#include "job/recording_folder.h"
#include "tutti/result.h"

namespace tutti {

class Recorder {
 public:
  struct RecorderOptions {
    std::uint64_t job = 0;  // the same on all ranks of the job, different from all other jobs
    std::uint64_t communicator = 0;
    std::uint32_t rank = 0;
    std::uint32_t ranks = 1;
    std::uint32_t job_rank = 0;
    std::string_view transport;
    // Number of operations on the host that are kept. A power of two from kLeastCapacity to kMostCapacity.
    std::uint32_t capacity = 1024;
  };
  // Returns null if no file can be created.
  static std::unique_ptr<Recorder> create(const std::shared_ptr<RecordingFolder>& folder,
                                          const RecorderOptions& options);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  std::uint64_t now() const { return recording::read_ticks(ticks_); }

  // Records that the next operation starts now. With recording::kNotStarted in `flags`: that it has failed before its
  // start. Returns the serial number of its record, which identifies the operation in later calls.
  std::uint64_t begin(const CallTag& tag, recording::CallPath way, std::uint8_t flags = 0) {
    const std::uint64_t serial = next_ += 2;
    recording::Record& record = record_at(serial);
    open(record, serial);
    write(record, tag, recording::Outcome{.state = recording::State::kRunning, .way = way, .flags = flags});
    record.serial.store(serial, std::memory_order_release);
    if ((serial & kAnchorMask) == 0) set_anchor();
    return serial;
  }
  // Adds a call on the host, or one segment of it, to the totals. `kind` is a CollectiveKind, and `bytes` the length of
  // the call or of the segment. `is_call` is false for each segment of a long call except its first one.
  void count(std::uint8_t kind, std::uint64_t bytes, bool is_call) {
    recording::KindTotal& total = header_->totals.host[kind];
    if (is_call) add_to(total.calls, 1);
    add_to(total.bytes, bytes);
  }
  // Records that the operation completed successfully at `ticks`.
  void end(std::uint64_t serial, std::uint64_t ticks) {
    recording::Record& record = record_at(serial);
    if (record.serial.load(std::memory_order_relaxed) != serial) return;  // newer operations have overwritten it
    record.end.store(ticks, std::memory_order_relaxed);
    auto outcome = std::bit_cast<recording::Outcome>(record.outcome.load(std::memory_order_relaxed));
    outcome.state = recording::State::kDone;
    record.outcome.store(std::bit_cast<std::uint64_t>(outcome), std::memory_order_release);
  }
  void end_badly(std::uint64_t serial, const Error& error, std::uint64_t sequence);
  // The fields of recording::Record with these names. All except `bytes` are 0 for a collective.
  struct Details {
    std::uint64_t bytes = 0;
    std::uint32_t peer = 0;
    std::uint32_t transfers = 0;
    std::uint64_t variable_call = 0;
  };
  // Records more details of an operation. Not called for a collective whose length follows from its tag.
  void add(std::uint64_t serial, const Details& details);
  // Records CallOptions::label of an operation. Has no effect if it is 0.
  void set_label(std::uint64_t serial, std::uint64_t label) {
    if (label != 0) set_label_of(record_at(serial), serial, label);
  }

  // Returns true if waits() should be called for a waiting operation. The state of a wait is written at most once
  // every kWaitEveryNs.
  bool should_record_wait(std::int64_t now_ns) const { return now_ns - last_wait_ns_ >= kWaitEveryNs; }
  struct Wait {
    std::uint64_t serial = 0;  // the result of begin() for the operation; 0 if the operation has not started
    std::uint64_t sequence = 0;
    std::span<const std::uint32_t> waited;  // the ranks for which the operation waits
    std::span<const std::uint32_t> absent;  // the ranks that have not entered the call
    std::string_view text;
  };
  void waits(const Wait& wait, std::int64_t now_ns);
  // Records the number of TCP segments that were sent again to `peer` so far.
  void retransmissions(std::uint32_t peer, std::uint64_t segments) {
    TUTTI_ASSERT(peer < peer_totals_.size());
    peer_totals_[peer].retransmissions_plus_1.store(segments + 1, std::memory_order_relaxed);
  }
  // Call this when an operation has progressed. The next call of waits() then records a new start time.
  void moved() { waiting_serial_ = ~std::uint64_t{0}; }

  // Records a call that a GPU carries out, with CallOptions::label (0: none). The recorder does not see its end.
  void enqueued(const CallTag& tag, std::uint64_t label);
  void aborted() { header_->aborted.store(now(), std::memory_order_relaxed); }
  // Records an error. If it belongs to an operation that has a record, call end_badly() instead, which calls this
  // function.
  void failed(const Error& error, std::uint64_t sequence);

 private:
  static constexpr std::uint64_t kAnchorMask = 2047;  // every 1024th operation reads the clocks
  static constexpr std::int64_t kWaitEveryNs = 50'000'000;
  // The longest time between two samples of a wait that counts as waiting. If more time has passed, this rank itself
  // was probably stopped meanwhile.
  static constexpr std::int64_t kMostWaitStepNs = 1'000'000'000;

  Recorder(std::shared_ptr<RecordingFolder> folder, std::unique_ptr<MappedRecording> file, std::string name,
           const RecorderOptions& options);
  // Adds to a word that only the calling thread changes.
  static void add_to(recording::Word& word, std::uint64_t amount) {
    word.store(word.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
  }
  void add_to_waits(const Wait& wait, std::int64_t waited_ns);
  recording::Record& record_at(std::uint64_t serial) const { return records_[(serial / 2 - 1) & mask_]; }
  static void set_label_of(recording::Record& record, std::uint64_t serial, std::uint64_t label) {
    record.label.store(label, std::memory_order_relaxed);
    record.label_serial.store(serial, std::memory_order_release);
  }
  static void open(recording::Record& record, std::uint64_t serial) {
    record.serial.store(serial - 1, std::memory_order_relaxed);
    // Makes readers see the odd serial before any changed field.
    std::atomic_thread_fence(std::memory_order_release);
  }
  void write(recording::Record& record, const CallTag& tag, recording::Outcome outcome) {
    std::uint64_t words[4];
    std::memcpy(words, &tag, sizeof(words));
    for (int i = 0; i < 4; ++i) record.tag[i].store(words[i], std::memory_order_relaxed);
    record.start.store(now(), std::memory_order_relaxed);
    record.outcome.store(std::bit_cast<std::uint64_t>(outcome), std::memory_order_relaxed);
  }
  void fill(const RecorderOptions& options);
  void set_anchor();

  const std::shared_ptr<RecordingFolder> folder_;  // shared by the communicators of the JobContext
  const std::unique_ptr<MappedRecording> file_;
  const std::string name_;
  recording::Header* const header_;
  recording::Record* const records_;
  const std::uint64_t mask_;
  recording::Record* const device_records_;
  const std::uint64_t device_mask_;
  const std::span<recording::PeerTotals> peer_totals_;  // by rank
  const recording::Ticks ticks_;
  const std::int32_t process_;
  std::uint64_t next_ = 0;  // the last serial number that was used
  std::uint64_t next_device_ = 0;
  std::int64_t last_wait_ns_ = 0;
  std::uint64_t waiting_serial_ = 0;
  std::uint64_t waiting_sequence_ = 0;
  bool ended_badly_ = false;
};

}  // namespace tutti
