// LaunchGroup: the ranks of one communicator that share a GPU and a process. Their calls run in one launch, so that no
// kernel of one waits for a kernel of another that finds no room: the last rank to call launches for all. A rank that
// is alone is a team, too; it launches in its caller's stream, and nothing is waited for.
//
//   stream of a rank    record "ready" ......... wait for "done" | if it called before the last one: wait for a word
//   launching stream    wait for all "ready" | kernel | record "done" | write the words
//
// The launching stream is the ranks' own where all gave the same, else one of the team's. Any thread; everything is
// guarded by one mutex, under which the driver is called.
//
// Bounds: kMostWaiting calls of a rank may wait for the others; a call that waits longer than its timeout fails, and
// the team with it: then the words are written by the host, and the streams go on.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/call_tag.h"
#include "cuda/resources.h"
#include "device/rank_device.h"
#include "engine/engine.h"
#include "executor/device_copies.h"
#include "executor/device_program.h"
#include "kernels/device/call.h"
#include "transports/transport.h"

namespace tutti::detail {

// What a rank shares with its device, in pinned memory.
struct RankFlags {
  device::RankStatus status;
  // Of call n the word n % kWords: n once its stream need not wait for it any more.
  static constexpr std::uint32_t kWords = 2048;
  alignas(device::kLineBytes) std::uint32_t passed[kWords] = {};
};

// Where the streams of all ranks meet: each sets its word in every arena and waits for all words in its own.
struct StreamBarrier {
  std::uint32_t rank = 0;
  std::vector<std::uint64_t> arenas;  // by rank, as this one's device sees them
};

// What all ranks of a call must have alike for one launch, beside the call itself.
struct DeviceLaunch {
  cuda::CUfunction kernel = nullptr;  // of `protocol`; ranks that were made apart have loaded it each for itself
  device::Protocol protocol = device::Protocol::kSimple;
  std::uint32_t channels = 1;
  std::uint32_t slices = 1;
  std::uint32_t threads = 512;
  std::uint64_t rounds = 0;  // 0: kernels may wait; else how many that do not, with a meeting of all ranks before each

  bool operator==(const DeviceLaunch& other) const {
    return protocol == other.protocol && channels == other.channels && slices == other.slices &&
           threads == other.threads && rounds == other.rounds;
  }
};

// What a rank copies in a call by copies.
struct DeviceCopies {
  std::vector<BlockCopy> copies;
  // By rank, where its input begins as this rank's GPU sees it; empty: the team is all ranks, the calls know.
  std::vector<std::uint64_t> inputs;
  std::uint64_t own_bytes = 0;  // first, from this rank's input to where its peers find that
};

// One call of one rank. Made by the caller's thread; then the team's.
class DeviceCall final : public StartCondition {
 public:
  device::Call call;
  DeviceGeometry tables;  // of v-variants; the launch says in call.geometry where they are
  DeviceLaunch launch;
  std::optional<DeviceCopies> copies;  // in the kernel's place, where all calls of the launch have some
  // What ranks set for each other at this call's meetings, never 0. A rank that sets another makes another call, and no
  // meeting ends by it.
  std::uint32_t meeting_word = 1;
  CallTag tag;
  cuda::CUstream stream = nullptr;
  std::int64_t timeout_ns = 0;

  bool open() const override { return true; }
  void ended(const Status& /*result*/) noexcept override {}
  void dropped() noexcept override {}
  // Of a captured call: at once.
  std::optional<Error> lost() override { return std::nullopt; }
  bool finished() override;
  Status outcome() override;
  // Makes the stream wait for the call, once it is submitted; see LaunchGroup::settle().
  Status settle();

 private:
  friend class LaunchGroup;
  std::shared_ptr<class LaunchGroup> team_;  // shared with the ranks; null: it was never submitted
  std::size_t seat_ = 0;
  std::uint32_t number_ = 0;            // of the rank's calls, as its word counts them
  std::uint64_t capture_ = 0;           // id of the capture that its stream is in; 0: none
  std::shared_ptr<cuda::Event> ready_;  // shared by the call and the pool that it goes back to
  std::shared_ptr<cuda::Event> done_;   // shared by the calls of one launch
  cuda::CUstream launched_in_ = nullptr;
  bool launched_ = false;
  bool non_blocking_ = false;  // its stream may wait for a word: no other stream of the caller's waits for it with it
  bool by_word_ = false;       // it does
  std::chrono::steady_clock::time_point deadline_{};
  std::optional<Status> outcome_;  // once it is known
};

class LaunchGroup : public std::enable_shared_from_this<LaunchGroup> {
 public:
  struct Seat {
    std::uint32_t rank = 0;
    std::uint32_t ranks = 1;
    std::function<PeerLife(std::uint32_t rank)> life{};  // of a peer, asked by any thread; empty: not known
    const StreamBarrier* meeting = nullptr;              // where calls go in rounds, or by copies between meetings
    RankFlags* words = nullptr;
    cuda::CUdeviceptr words_on_device = 0;
  };
  // `whole`: these are all ranks of the communicator.
  LaunchGroup(std::shared_ptr<RankDevice> device, const std::vector<std::uint32_t>& ranks, bool whole);
  ~LaunchGroup();
  LaunchGroup(const LaunchGroup&) = delete;
  LaunchGroup& operator=(const LaunchGroup&) = delete;

  // Before the rank's first call. The words live until forget(). Errors: the driver's.
  Status take_seat(const Seat& seat);
  // Who hears why this rank takes part no more, where its peers do not see that for themselves. Called without the
  // team's mutex, by any thread, until forget().
  using Tell = std::function<void(const Error&)>;
  void tell(std::uint32_t rank, Tell tell);

  // The rank's next call. Launches if it was the last that was missing. Errors: those of the call (kMismatch ...), the
  // driver's, those that broke the team before.
  Status submit(std::uint32_t rank, const std::shared_ptr<DeviceCall>& call);
  // Makes the call's stream wait for it; after it, and after what else its thread submits with it. Waits a little for
  // ranks that other threads serve: as long as no stream waits for a word, those may call functions of the driver that
  // wait for the whole device (cuMemFree), and streams that share a queue of the hardware do not hold each other up.
  Status settle(DeviceCall& call);

  // Ends what waits for other ranks with `error`, here and for all, and refuses everything from now on.
  void fail(const Error& error) noexcept;
  // Why this rank's calls failed, if they did. With the driver asked, a lost context too.
  std::optional<Error> failure(std::uint32_t rank, bool asks_driver);
  // Waits for what was launched, at most for `limit`. True: nothing runs any more.
  bool drain(std::uint32_t rank, std::chrono::milliseconds limit) noexcept;
  // The rank makes no more calls; what waits for it fails.
  void leave(std::uint32_t rank) noexcept;
  // Its words are not used from here on.
  void forget(std::uint32_t rank);

 private:
  friend class DeviceCall;
  struct Member {
    Seat seat;
    std::shared_ptr<const Tell> tell{};  // shared with tell_others(), which calls it without the mutex
    bool untold = false;                 // it has yet to hear of broken_
    bool here = false;
    std::uint64_t failure = 0;  // a device::FailureWord, as it stood when the rank left
    std::uint32_t numbers = 0;
    bool left = false;
    std::optional<Error> told_later{};                // of a call that had returned already
    std::thread::id caller{};                         // of its last call
    std::deque<std::shared_ptr<DeviceCall>> waiting;  // shared with the operation
  };
  // The mutex. When it is free again, those are told who have to hear what happened under it: engines have mutexes of
  // their own, and the driver may be slow under this one.
  class Hold {
   public:
    explicit Hold(LaunchGroup& team) : lock(team.mutex_), team_(team) {}
    ~Hold() { team_.tell_others(lock); }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

    std::unique_lock<std::mutex> lock;

   private:
    LaunchGroup& team_;
  };
  // Events that are free; outlives the team where calls still hold some. `free` has room for all that were made, so
  // that giving one back needs no memory.
  struct Pool {
    std::mutex mutex;
    std::size_t made = 0;
    std::vector<std::unique_ptr<cuda::Event>> free;
  };
  // Launches that wait for ranks elsewhere and have not ended, as far as is known: the watchdog ends them where a rank
  // has gone.
  struct Underway {
    std::shared_ptr<DeviceCall> call;                              // one of them, shared with its operation
    std::shared_ptr<cuda::Event> done;                             // shared with the calls
    std::shared_ptr<cuda::Event> begun;                            // recorded before the kernel or the first meeting
    std::optional<std::chrono::steady_clock::time_point> since{};  // it has begun
  };
  Result<std::shared_ptr<cuda::Event>> take_event();
  Status take_call(Member& caller, const std::shared_ptr<DeviceCall>& call);
  Status make_wait(std::unique_lock<std::mutex>& lock, DeviceCall& call);
  void tell_others(std::unique_lock<std::mutex>& lock) noexcept;
  Error lost(const DeviceCall& call, const Error& error) const;
  void look_at_waiting();
  void end_kernels() noexcept;
  Member& member(std::uint32_t rank);
  Status look_at_stream(DeviceCall& call);
  Status check_word_waits(const Member& caller, const DeviceCall& call);
  void let_go(const DeviceCall& call);
  cuda::CUdeviceptr word_on_device(const DeviceCall& call) const;
  bool wait_for_others(std::unique_lock<std::mutex>& lock, DeviceCall& call);
  Status launch_front(const Member& caller);
  Status check_front() const;
  Status launch(const std::vector<std::shared_ptr<DeviceCall>>& calls);
  Result<cuda::CUstream> choose_stream(const std::vector<std::shared_ptr<DeviceCall>>& calls);
  bool others_serve_the_rest() const;
  Status put_rounds(const DeviceCall& call, cuda::CUstream stream);
  Status put_copies(const std::vector<std::shared_ptr<DeviceCall>>& calls, cuda::CUstream stream);
  Status copy_blocks(const DeviceCall& call, const std::vector<std::uint64_t>& inputs, cuda::CUstream stream);
  Status meet(const StreamBarrier& meeting, std::uint32_t parity, std::uint32_t word, cuda::CUstream stream);
  Error not_met(const DeviceCall& call);
  void say_given_up();
  void look_at_underway();
  void look_at_rounds(Underway& first);
  void look_at_peers(const DeviceCall& call);
  void let_streams_go() noexcept;
  void release_rounds();
  void look_at_replays();
  const DeviceCall* first_to_expire() const;
  Status start_watchdog();
  Status put_kernel(const std::vector<std::shared_ptr<DeviceCall>>& calls, cuda::CUstream stream);
  Error not_launched(cuda::CUresult result, const device::Launch& launch, std::uint32_t threads) const;
  Status lend_first(std::uint32_t ranks);
  Status lend_more(std::size_t bytes);
  Result<const device::Call*> lend(const std::vector<std::shared_ptr<DeviceCall>>& calls);
  void fail_locked(const Error& error) noexcept;
  Status fail_by_exception(std::uint32_t rank) noexcept;
  std::optional<Status> look(DeviceCall& call) noexcept;
  std::optional<Status> find_outcome(DeviceCall& call);
  static std::uint64_t failure_word(const Member& its);
  void watch() noexcept;
  void look_at_all();
  void wait_to_look(std::unique_lock<std::mutex>& lock);
  Error missing(const DeviceCall& call) const;
  static Error call_error(ErrorCode code, std::string message, std::int32_t rank = -1) {
    return {code, ErrorScope::kCall, rank, std::move(message)};
  }

  const std::shared_ptr<RankDevice> device_;  // shared with the ranks
  const bool whole_;
  std::mutex mutex_;
  std::vector<Member> members_;
  std::optional<Error> broken_;
  std::shared_ptr<Pool> pool_ = std::make_shared<Pool>();  // shared with events that are in use
  std::optional<cuda::Stream> stream_;                     // where the ranks have different ones
  std::optional<cuda::Stream> capture_stream_;             // the same, of captures
  std::shared_ptr<cuda::Event> last_plain_done_;           // of the last launch that was not captured
  std::shared_ptr<cuda::Event> last_captured_done_;        // of the last that was,
  std::uint64_t last_capture_ = 0;                         // in this capture
  bool captured_rounds_ = false;                           // replays may wait for peers at any time
  std::set<std::uint32_t> captured_words_;                 // by which
  std::size_t release_turns_ = 0;
  // What launches read in host memory (lend()); that of captures stays.
  struct Lent {
    cuda::PinnedMemory memory;
    std::shared_ptr<cuda::Event> done;  // null, and used: it stays
    bool used = false;
  };
  std::vector<Lent> lent_;
  bool lends_ = false;  // the launch at hand reads in the last of them
  std::deque<Underway> underway_;
  std::optional<std::chrono::steady_clock::time_point> gone_since_;  // a peer has left, or ended
  std::optional<cuda::Stream> release_stream_;
  std::condition_variable launched_;  // or failed
  std::condition_variable changed_;
  bool ending_ = false;
  std::thread watchdog_;
};

}  // namespace tutti::detail
