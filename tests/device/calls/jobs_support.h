// Job: a test's job of several processes. Its ranks have GPUs. Every process is a fork of the test process and has one
// or more ranks, each with a thread of its own. The test process itself must not call the driver, because a forked
// child cannot use a driver that its parent has initialized.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <barrier>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/device/calls/calls_support.h"
#include "tests/support/patience.h"

namespace tutti::testing {

using Devices = std::vector<std::int32_t>;

// If `holds` is false, prints `what` and ends the process of this rank with status 1.
inline void must(bool holds, const std::string& what) {
  if (holds) return;
  fprintf(stderr, "rank failed: %s\n", what.c_str());
  _exit(1);
}
inline void must(const Status& status) { must(status.ok(), status.ok() ? "" : to_string(status.error())); }

// The timeout of jobs in which no call may time out.
inline const std::chrono::milliseconds kLongTimeout = 2 * test::patience();

class Job {
 public:
  using Body = std::function<void(Communicator& rank, const Gpu& gpu)>;
  // Functions that each rank calls before and after it creates its communicator. If these functions are given and the
  // communicator cannot be created, the rank does nothing more. Without them, such a rank ends its process with an
  // error.
  struct Making {
    std::function<void(std::int32_t rank)> begins;
    std::function<void(const Result<std::unique_ptr<Communicator>>& made)> ends;
  };

  // One process for each device, with one rank.
  explicit Job(const Devices& devices) : Job(each_alone(devices)) {}
  // processes[i] has the devices of the ranks in process i.
  explicit Job(std::vector<Devices> processes)
      : processes_(std::move(processes)), listening_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    EXPECT_EQ(bind(listening_, reinterpret_cast<sockaddr*>(&address), length), 0);
    EXPECT_EQ(listen(listening_, 64), 0);
    EXPECT_EQ(getsockname(listening_, reinterpret_cast<sockaddr*>(&address), &length), 0);
    root_ = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  }

  // Runs `body` as every rank. `begin` is called in each process before its ranks are created. Returns true if all
  // processes have exited with status 0.
  bool run(
      const Body& body, std::chrono::milliseconds timeout = kLongTimeout, const std::function<void()>& begin = [] {},
      const Making* making = nullptr) {
    options_.timeout = timeout;
    options_.setup_timeout = making == nullptr ? kLongTimeout : timeout;
    std::vector<pid_t> processes;
    std::int32_t first = 0;
    int number = 0;
    for (const Devices& devices : processes_) {
      options_.size += static_cast<std::int32_t>(devices.size());
    }
    for (const Devices& devices : processes_) {
      if (processes_of_a_machine_ > 0)
        options_.node_id = "machine " + std::to_string(number++ / processes_of_a_machine_);
      const pid_t process = fork();
      if (process == 0) run_process(first, devices, body, begin, making);
      processes.push_back(process);
      first += static_cast<std::int32_t>(devices.size());
    }
    close(listening_);
    bool all = true;
    for (const pid_t process : processes) {
      int status = 0;
      EXPECT_EQ(waitpid(process, &status, 0), process);
      all &= WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }
    return all;
  }

  // Allows the ranks to leak driver objects. Calls in graphs that the host carries out never free the memory that the
  // graphs use.
  void may_keep_memory() { may_keep_memory_ = true; }
  // Lets the ranks believe that every `processes` processes, in order, are on a machine of their own.
  void set_processes_of_a_machine(int processes) { processes_of_a_machine_ = processes; }

 private:
  static std::vector<Devices> each_alone(const Devices& devices) {
    std::vector<Devices> processes;
    for (const std::int32_t device : devices) processes.push_back({device});
    return processes;
  }

  [[noreturn]] void run_process(std::int32_t first, const Devices& devices, const Body& body,
                                const std::function<void()>& begin, const Making* making) {
    setenv("TUTTI_ROOT", root_.c_str(), 1);
    setenv("TUTTI_JOB_ID", "device jobs", 1);
    if (first == 0) setenv("TUTTI_ROOT_FD", std::to_string(listening_).c_str(), 1);
    driver();
    begin();
    // Keep the primary contexts until all ranks of the process have finished. Otherwise the first rank to finish could
    // destroy a context that others still use.
    std::vector<cuda::PrimaryContext> contexts;
    for (const std::int32_t device : devices) contexts.push_back(*cuda::PrimaryContext::retain(driver(), device));
    std::barrier all_done(static_cast<std::ptrdiff_t>(devices.size()));
    std::vector<std::thread> ranks;
    for (std::size_t i = 0; i < devices.size(); ++i) {
      ranks.emplace_back([&, i] {
        const Gpu gpu(devices[i]);
        CommunicatorOptions options = options_;
        options.rank = first + static_cast<std::int32_t>(i);
        if (making != nullptr) making->begins(options.rank);
        auto communicator = Communicator::create(options);  // uses the GPU of the current context
        if (making != nullptr) making->ends(communicator);
        if (making == nullptr) must(communicator.ok(), communicator.ok() ? "" : to_string(communicator.error()));
        if (communicator.ok()) body(**communicator, gpu);
        // Keep the communicator until all ranks of the process are done, because ranks that share its GPU would
        // otherwise lose this rank as a peer.
        all_done.arrive_and_wait();
      });
    }
    for (std::thread& rank : ranks) rank.join();
    contexts.clear();
    // With `making`, set-up may fail on purpose. If the peers of a rank have already opened its memory, it leaks this
    // memory and logs a warning, so leaks are not checked.
    const std::string leaks = making == nullptr && !may_keep_memory_ ? small_devices().leaks() : "";
    must(leaks.empty(), leaks);
    _exit(0);
  }

  const std::vector<Devices> processes_;
  bool may_keep_memory_ = false;
  int processes_of_a_machine_ = 0;  // 0: all processes are on one machine
  const int listening_;
  std::string root_;
  CommunicatorOptions options_ = [] {
    CommunicatorOptions options;
    options.size = 0;
    return options;
  }();
};

}  // namespace tutti::testing
