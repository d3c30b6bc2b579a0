// Recorder: the flight recorder of one rank in one communicator: the last operations, what it waits for and how it
// failed, in a mapped file (base/recording.h) that outlives the process. No call fails for it, and none waits.
//
// begin(), end(), waits() and failed() are the engine's driver's, one thread at a time. enqueued() is called under the
// submission mutex. aborted() from any thread.
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/call_tag.h"
#include "base/recording.h"
#include "job/recording_folder.h"
#include "tutti/result.h"

namespace tutti {

class Recorder {
 public:
  struct About {
    std::uint64_t job = 0;  // an id that all ranks of the job have alike, and no other job has
    std::uint64_t communicator = 0;
    std::uint32_t rank = 0;
    std::uint32_t ranks = 1;
    std::uint32_t job_rank = 0;
    std::string_view transport;
    std::uint32_t capacity = 1024;  // operations remembered: a power of two, kLeastCapacity .. kMostCapacity
  };
  // Null where no file can be made.
  static std::unique_ptr<Recorder> create(std::shared_ptr<RecordingFolder> folder, const About& about);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  std::uint64_t now() const { return recording::read_ticks(ticks_); }

  // The next operation, begun now. Its serial, for what follows.
  std::uint64_t begin(const CallTag& tag, recording::Way way, std::uint8_t flags = 0) {
    const std::uint64_t serial = next_ += 2;
    recording::Record& record = place(serial);
    open(record, serial);
    write(record, tag, recording::Outcome{.state = recording::State::kRunning, .way = way, .flags = flags});
    record.serial.store(serial, std::memory_order_release);
    if ((serial & kAnchorMask) == 0) set_anchor();
    return serial;
  }
  // It ended well at `ticks`.
  void end(std::uint64_t serial, std::uint64_t ticks) {
    recording::Record& record = place(serial);
    if (record.serial.load(std::memory_order_relaxed) != serial) return;  // others have taken its place since
    record.end.store(ticks, std::memory_order_relaxed);
    auto outcome = std::bit_cast<recording::Outcome>(record.outcome.load(std::memory_order_relaxed));
    outcome.state = recording::State::kDone;
    record.outcome.store(std::bit_cast<std::uint64_t>(outcome), std::memory_order_release);
  }
  void end_badly(std::uint64_t serial, const Error& error, std::uint64_t sequence);
  // More of an operation that is not short.
  void add(std::uint64_t serial, std::uint64_t bytes, std::uint32_t peer, std::uint32_t transfers);

  // An operation waits. At most every kWaitEveryNs is anything written: ask first.
  bool tells_waits(std::int64_t now_ns) const { return now_ns - last_wait_ns_ >= kWaitEveryNs; }
  struct Wait {
    std::uint64_t serial = 0;  // 0: it has not begun
    std::uint64_t sequence = 0;
    std::span<const std::uint32_t> waited;  // ranks
    std::span<const std::uint32_t> absent;  // ranks that have not entered the call
    std::string_view text;
  };
  void waits(const Wait& wait, std::int64_t now_ns);
  void moved() { waiting_serial_ = ~std::uint64_t{0}; }  // the next wait is a new one

  // A GPU carries this call out; its end is not seen.
  void enqueued(const CallTag& tag);
  void aborted() { header_->aborted.store(now(), std::memory_order_relaxed); }
  // An error that belongs to no operation of the engine's.
  void failed(const Error& error, std::uint64_t sequence);

 private:
  static constexpr std::uint64_t kAnchorMask = 2047;  // every 1024th operation looks at the clocks
  static constexpr std::int64_t kWaitEveryNs = 50'000'000;

  Recorder(std::shared_ptr<RecordingFolder> folder, std::unique_ptr<MappedRecording> file, std::string name,
           std::uint32_t capacity);
  recording::Record& place(std::uint64_t serial) const { return records_[(serial / 2 - 1) & mask_]; }
  static void open(recording::Record& record, std::uint64_t serial) {
    record.serial.store(serial - 1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);  // no field is seen replaced before it
  }
  void write(recording::Record& record, const CallTag& tag, recording::Outcome outcome) {
    std::uint64_t words[4];
    std::memcpy(words, &tag, sizeof(words));
    for (int i = 0; i < 4; ++i) record.tag[i].store(words[i], std::memory_order_relaxed);
    record.start.store(now(), std::memory_order_relaxed);
    record.outcome.store(std::bit_cast<std::uint64_t>(outcome), std::memory_order_relaxed);
  }
  void fill(const About& about);
  void set_anchor();

  const std::shared_ptr<RecordingFolder> folder_;  // shared by the rank's communicators
  const std::unique_ptr<MappedRecording> file_;
  const std::string name_;
  recording::Header* const header_;
  recording::Record* const records_;
  const std::uint64_t mask_;
  recording::Record* const device_records_;
  const std::uint64_t device_mask_;
  const recording::Ticks ticks_;
  const std::int32_t process_;
  std::uint64_t next_ = 0;  // serial given last
  std::uint64_t next_device_ = 0;
  std::int64_t last_wait_ns_ = 0;
  std::uint64_t waiting_serial_ = 0;
  std::uint64_t waiting_sequence_ = 0;
  bool ended_badly_ = false;
};

}  // namespace tutti
