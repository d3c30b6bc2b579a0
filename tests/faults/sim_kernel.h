// SimKernel: TCP sockets, epolls and eventfds for the ranks of a SimEnvironment. They behave as on Linux: transfers
// may be short, buffers become full, connections are established, end and break after the latencies of the
// environment, and data on a closed or reset connection may be lost. System calls arrive here if a rank makes them,
// most of them only if they also use a descriptor of the simulation (see sim_calls.cc). Therefore the production code
// runs on it without changes.
//
// Only the rank that has the turn may call it.
#pragma once

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "transports/sim/sim_environment.h"

namespace tutti::faults {

inline constexpr int kFirstDescriptor = 1 << 24;  // greater than any real descriptor

class SimKernel {
 public:
  explicit SimKernel(SimEnvironment& environment);
  ~SimKernel();
  SimKernel(const SimKernel&) = delete;
  SimKernel& operator=(const SimKernel&) = delete;

  // The kernel of the rank that this thread runs; null if it runs none.
  static SimKernel* current();
  void adopt_thread();  // each rank calls this first

  std::size_t open_descriptors() const { return table_.size(); }

  // Like the system calls: they return -1 and set errno on errors.
  int socket();
  int epoll();
  int event();
  int bind_listener(int fd);
  int accept(int fd);
  int connect(int fd, std::uint16_t port);
  ssize_t send(int fd, const iovec* parts, std::size_t count);
  ssize_t receive(int fd, const iovec* parts, std::size_t count, bool peek);
  int sleep(std::int64_t ns);
  int poll(pollfd* descriptors, std::size_t count, int timeout_ms);
  int unread(int fd);
  std::uint16_t port(int fd, bool remote);
  int epoll_control(int fd, int operation, int target, const epoll_event* event);
  int epoll_wait(int fd, epoll_event* events, int most);
  ssize_t ring(int fd);
  int close(int fd);

 private:
  struct Stream;
  struct Object;
  using StreamPtr = std::shared_ptr<Stream>;  // shared by the descriptor, the other end, and data in transit

  int add(Object object);
  Object* find(int fd);
  StreamPtr stream_of(int fd);
  StreamPtr make_stream(std::uint32_t owner, std::uint32_t peer);
  void arrive(const StreamPtr& from, std::function<void()> happen);
  void deliver(const StreamPtr& from, std::vector<std::byte> bytes);
  void acknowledge(const StreamPtr& reader, std::size_t bytes);
  void break_off(const StreamPtr& stream, int error);
  void reset_peer_of(const StreamPtr& stream);
  void close_stream(const StreamPtr& stream);
  void end_of(std::uint32_t rank);
  void reset_between(std::uint32_t a, std::uint32_t b);
  bool readable(int fd);
  static short state_of(const Stream& stream);

  SimEnvironment& environment_;
  std::map<int, Object> table_;
  std::map<std::uint16_t, int> listeners_;  // indexed by port
  std::vector<std::weak_ptr<Stream>> streams_;
  int next_descriptor_ = kFirstDescriptor;
  std::uint16_t next_port_ = 20000;
};

}  // namespace tutti::faults
