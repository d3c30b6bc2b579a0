// Benchmark of one TCP connection of the transport, between two processes on loopback. To compare with, the same run
// contains "plain": programs that use sockets directly. Counters: GB/s in one direction (stream), us for one direction
// (ping_pong), and the processor time of both processes together: cpu_ms/GB (stream), cpu_us for one direction
// (ping_pong). "plain" sends and receives with the given call size on non-blocking sockets, without frames, credits and
// advertised receive buffers. A stream over n sockets distributes the calls over them. With TUTTI_ENCRYPT=1 the
// transport's connection uses TLS.
#include <benchmark/benchmark.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <functional>
#include <vector>

#include "transports/tcp/tcp_transport.h"

namespace {

using tutti::CallTag;

constexpr std::size_t kLargest = 4 << 20;
constexpr int kSpins = 200;
// An iteration of a stream sends kStreamBytes bytes, and an iteration of a ping-pong makes kTrips exchanges. Both are
// short, so that on a busy machine some iterations have both cores for themselves. The first iteration of each run is a
// warm-up and is not timed, because the kernel adapts its buffers to the traffic.
constexpr std::uint64_t kStreamBytes = 16 << 20;
constexpr int kTrips = 1000;

[[noreturn]] void die(const char* what) {
  std::perror(what);
  std::abort();
}

// Runs `child` in a child process, which is killed by the destructor if it has not exited before.
class Child {
 public:
  explicit Child(const std::function<void()>& child) : pid_(fork()) {
    if (pid_ < 0) die("fork");
    if (pid_ > 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    child();
    _exit(0);
  }
  ~Child() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Child(const Child&) = delete;

  // Processor time of this process and the child, in seconds since they were started.
  double cpu_s() const {
    clockid_t clock{};
    clock_getcpuclockid(pid_, &clock);
    return seconds_of(clock) + seconds_of(CLOCK_PROCESS_CPUTIME_ID);
  }

 private:
  static double seconds_of(clockid_t clock) {
    timespec time{};
    clock_gettime(clock, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
  }

  pid_t pid_;
};

// ---- plain sockets

struct PlainPair {
  std::vector<tutti::Socket> near;
  std::vector<tutti::Socket> far;

  explicit PlainPair(std::size_t sockets, std::uint32_t buffer_bytes) {
    tutti::Socket listener = tutti::listen_on(*tutti::parse_host("127.0.0.1")).value();
    const tutti::SocketAddress address = tutti::local_address(listener.get());
    for (std::size_t i = 0; i < sockets; ++i) {
      near.push_back(tutti::connect_to(address, buffer_bytes, 0).value());
      pollfd ready{.fd = listener.get(), .events = POLLIN, .revents = 0};
      poll(&ready, 1, 5000);
      far.emplace_back(accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      tutti::tune(far.back().get(), buffer_bytes);
    }
  }
};

// Called after a send or receive that moved no data. Every kSpins-th call waits until the socket is ready for `event`,
// for at most 1 s. The other calls return at once. `spins`: the number of calls since it waited last.
void wait_for(int fd, short event, int& spins) {
  if (++spins < kSpins) return;
  spins = 0;
  pollfd ready{.fd = fd, .events = event, .revents = 0};
  poll(&ready, 1, 1000);
}

void send_all(int fd, const std::byte* data, std::size_t bytes) {
  int spins = 0;
  while (bytes > 0) {
    const ssize_t sent = send(fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno != EAGAIN) die("send");
    if (sent <= 0) {
      wait_for(fd, POLLOUT, spins);
      continue;
    }
    data += sent;
    bytes -= static_cast<std::size_t>(sent);
  }
}

void receive_all(int fd, std::byte* data, std::size_t bytes) {
  int spins = 0;
  while (bytes > 0) {
    const ssize_t got = recv(fd, data, bytes, MSG_DONTWAIT);
    if (got == 0) _exit(0);
    if (got < 0 && errno != EAGAIN) die("recv");
    if (got <= 0) {
      wait_for(fd, POLLIN, spins);
      continue;
    }
    data += got;
    bytes -= static_cast<std::size_t>(got);
  }
}

// The data of sender and receiver advance through a range of kLargest bytes, as in tutti_stream(), so that both
// benchmarks use the same amount of cache.
void plain_stream(benchmark::State& state) {
  const auto call_bytes = static_cast<std::size_t>(state.range(0));
  const auto sockets = static_cast<std::size_t>(state.range(1));
  PlainPair pair(sockets, static_cast<std::uint32_t>(state.range(2)));
  std::vector<std::byte> data(kLargest);
  Child receiver([&] {
    pair.near.clear();
    for (std::uint64_t moved = 0;; moved += call_bytes) {
      receive_all(pair.far[moved / call_bytes % sockets].get(), data.data() + moved % kLargest, call_bytes);
      if ((moved + call_bytes) % kStreamBytes == 0) send_all(pair.far[0].get(), data.data(), 1);
    }
  });
  pair.far.clear();
  const auto once = [&] {
    for (std::uint64_t moved = 0; moved < kStreamBytes; moved += call_bytes) {
      send_all(pair.near[moved / call_bytes % sockets].get(), data.data() + moved % kLargest, call_bytes);
    }
    receive_all(pair.near[0].get(), data.data(), 1);
  };
  once();
  const double before_s = receiver.cpu_s();
  for (auto _ : state) once();
  state.counters["cpu_ms/GB"] = (receiver.cpu_s() - before_s) * 1e12 /
                                static_cast<double>(kStreamBytes * static_cast<std::uint64_t>(state.iterations()));
  state.counters["GB/s"] =
      benchmark::Counter(static_cast<double>(kStreamBytes) / 1e9, benchmark::Counter::kIsIterationInvariantRate);
}

// Uses one socket for both directions, or one socket for each direction. The transport has one for each direction. In
// that case the kernel sends acknowledgements in packets of their own, because no answer travels on the same socket.
void plain_ping_pong(benchmark::State& state) {
  PlainPair pair(static_cast<std::size_t>(state.range(0)), 0);
  std::vector<std::byte> data(8);
  Child echo([&] {
    pair.near.clear();
    while (true) {
      receive_all(pair.far.front().get(), data.data(), 8);
      send_all(pair.far.back().get(), data.data(), 8);
    }
  });
  pair.far.clear();
  const auto once = [&] {
    for (int i = 0; i < kTrips; ++i) {
      send_all(pair.near.front().get(), data.data(), 8);
      receive_all(pair.near.back().get(), data.data(), 8);
    }
  };
  once();
  const double before_s = echo.cpu_s();
  for (auto _ : state) once();
  state.counters["cpu_us"] = (echo.cpu_s() - before_s) * 1e6 / (2.0 * kTrips * static_cast<double>(state.iterations()));
  state.counters["us"] = benchmark::Counter(
      2.0 * kTrips / 1e6, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

// ---- the transport

struct Rank {
  std::unique_ptr<tutti::TcpTransport> transport;
  std::unique_ptr<tutti::SendConnection> send;
  std::unique_ptr<tutti::ReceiveConnection> receive;

  Rank(std::uint32_t rank, std::shared_ptr<tutti::TcpEndpoint> endpoint, const std::vector<std::string>& addresses,
       std::uint32_t slot_bytes, std::uint32_t buffer_bytes) {
    transport = tutti::TcpTransport::create({.rank = rank,
                                             .ranks = 2,
                                             .communicator = 1,
                                             .slots = 4,
                                             .slot_bytes = slot_bytes,
                                             .socket_buffer_bytes = buffer_bytes},
                                            std::move(endpoint), addresses)
                    .value();
    send = transport->open_send(1 - rank, 0).value();
    receive = transport->open_receive(1 - rank, 0).value();
  }

  void post(const std::byte* data, std::size_t bytes, const CallTag& tag) {
    wait([&] { return send->ready(); });
    send->send_from(data, bytes, tag);
    transport->flush();
  }
  void take(const CallTag& tag, std::span<std::byte> place) {
    wait([&] { return receive->arrival(tag, place) == tutti::Arrival::kMessage; });
    receive->release();
  }

 private:
  // Waits in the same way as the plain program, so that only the transport makes a difference.
  template <class Ready>
  void wait(const Ready& is_ready) {
    tutti::Doorbell& bell = transport->doorbell();
    for (int spins = 0; !is_ready(); ++spins) {
      transport->flush();
      if (spins < kSpins) continue;
      bell.arm();
      if (is_ready()) return bell.disarm();
      bell.sleep(1'000'000'000);
      spins = 0;
    }
  }
};

struct Endpoints {
  std::vector<std::shared_ptr<tutti::TcpEndpoint>> list;
  std::vector<std::string> addresses;
  Endpoints() {
    const char* const setting = std::getenv("TUTTI_ENCRYPT");
    const bool encrypt = setting != nullptr && *setting == '1';
    for (int i = 0; i < 2; ++i) {
      list.push_back(tutti::TcpEndpoint::listen({.address = "127.0.0.1", .key = {1}, .encrypt = encrypt}).value());
      addresses.push_back(list.back()->address());
    }
  }
};

enum class Store { kReceiveBuffer, kSlot };

void tutti_stream(benchmark::State& state, Store store) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  const auto buffer_bytes = static_cast<std::uint32_t>(state.range(1));
  std::vector<std::byte> data(kLargest);
  const CallTag tag{.sequence = 1};
  Endpoints endpoints;
  Child receiver([&] {
    Rank rank(1, endpoints.list[1], endpoints.addresses, static_cast<std::uint32_t>(bytes), buffer_bytes);
    for (std::uint64_t moved = 0;; moved += bytes) {
      std::span<std::byte> place(data.data() + moved % kLargest, bytes);
      rank.take(tag, store == Store::kReceiveBuffer ? place : std::span<std::byte>());
      if ((moved + bytes) % kStreamBytes == 0) rank.post(data.data(), 1, tag);
    }
  });
  Rank rank(0, endpoints.list[0], endpoints.addresses, static_cast<std::uint32_t>(bytes), buffer_bytes);
  const auto once = [&] {
    for (std::uint64_t moved = 0; moved < kStreamBytes; moved += bytes) {
      rank.post(data.data() + moved % kLargest, bytes, tag);
    }
    rank.take(tag, {});
  };
  once();
  const double before_s = receiver.cpu_s();
  for (auto _ : state) once();
  state.counters["cpu_ms/GB"] = (receiver.cpu_s() - before_s) * 1e12 /
                                static_cast<double>(kStreamBytes * static_cast<std::uint64_t>(state.iterations()));
  state.counters["GB/s"] =
      benchmark::Counter(static_cast<double>(kStreamBytes) / 1e9, benchmark::Counter::kIsIterationInvariantRate);
}

void tutti_ping_pong(benchmark::State& state) {
  std::vector<std::byte> data(8);
  const CallTag tag{.sequence = 1};
  Endpoints endpoints;
  Child echo([&] {
    Rank rank(1, endpoints.list[1], endpoints.addresses, 4096, 0);
    while (true) {
      rank.take(tag, data);
      rank.post(data.data(), 8, tag);
    }
  });
  Rank rank(0, endpoints.list[0], endpoints.addresses, 4096, 0);
  const auto once = [&] {
    for (int i = 0; i < kTrips; ++i) {
      rank.post(data.data(), 8, tag);
      rank.take(tag, data);
    }
  };
  once();
  const double before_s = echo.cpu_s();
  for (auto _ : state) once();
  state.counters["cpu_us"] = (echo.cpu_s() - before_s) * 1e6 / (2.0 * kTrips * static_cast<double>(state.iterations()));
  state.counters["us"] = benchmark::Counter(
      2.0 * kTrips / 1e6, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

constexpr std::int64_t kKiB = 1024;
constexpr auto kUnit = benchmark::kMillisecond;

// The benchmarks run in this order. The streams of the transport follow directly those of the plain program, and so do
// the ping-pongs, so that the load of the machine differs little between them.
BENCHMARK(plain_stream)
    ->Name("plain/call_sockets_buffer")
    ->Unit(kUnit)
    ->UseRealTime()
    ->Args({64 * kKiB, 1, 0})
    ->Args({128 * kKiB, 1, 0})
    ->Args({256 * kKiB, 1, 0})
    ->Args({1024 * kKiB, 1, 0})
    ->Args({4096 * kKiB, 1, 0})
    ->Args({128 * kKiB, 2, 0})
    ->Args({128 * kKiB, 4, 0})
    ->Args({128 * kKiB, 1, 1024 * kKiB})
    ->Args({128 * kKiB, 1, 4096 * kKiB});
BENCHMARK_CAPTURE(tutti_stream, place, Store::kReceiveBuffer)
    ->Name("tutti/place/message_buffer")
    ->Unit(kUnit)
    ->UseRealTime()
    ->Args({64 * kKiB, 0})
    ->Args({128 * kKiB, 0})
    ->Args({256 * kKiB, 0})
    ->Args({1024 * kKiB, 0})
    ->Args({4096 * kKiB, 0})
    ->Args({128 * kKiB, 1024 * kKiB})
    ->Args({128 * kKiB, 4096 * kKiB});
BENCHMARK_CAPTURE(tutti_stream, slot, Store::kSlot)
    ->Name("tutti/slot/message_buffer")
    ->Unit(kUnit)
    ->UseRealTime()
    ->Args({64 * kKiB, 0})
    ->Args({128 * kKiB, 0})
    ->Args({1024 * kKiB, 0});
BENCHMARK(plain_ping_pong)->Name("plain/ping_pong/8/sockets")->Unit(kUnit)->UseRealTime()->Arg(1)->Arg(2);
BENCHMARK(tutti_ping_pong)->Name("tutti/ping_pong/8")->Unit(kUnit)->UseRealTime();

}  // namespace

BENCHMARK_MAIN();
