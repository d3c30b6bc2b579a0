#include "tools/elastic.h"

#include <errno.h>
#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <sstream>
#include <utility>

#include "tools/system_error.h"
#include "tutti/unique_id.h"

namespace tutti::tool {
namespace {

constexpr std::size_t kMostBytes = 64;                    // of what a rank says
constexpr std::chrono::milliseconds kFirstComes{60'000};  // to the place of a meeting, or it closes

}  // namespace

Result<Fd> ElasticControl::seat(std::size_t place) {
  begin_anew();
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return system_error("cannot make a socket for a rank", errno);
  }
  seats_.at(place) = {.channel = Fd(ends[0])};
  return Fd(ends[1]);
}

void ElasticControl::ended(std::size_t place) {
  seats_.at(place) = {};
  for (const Seat& seat : seats_) {
    if (seat.channel.valid()) ::send(seat.channel.get(), "lost", 4, MSG_NOSIGNAL | MSG_DONTWAIT);
  }
}

std::vector<int> ElasticControl::descriptors() const {
  std::vector<int> descriptors;
  for (const Seat& seat : seats_) {
    if (seat.channel.valid()) descriptors.push_back(seat.channel.get());
  }
  return descriptors;
}

std::vector<std::size_t> ElasticControl::missing() const {
  std::vector<std::size_t> missing;
  for (std::size_t place = 0; place < seats_.size(); ++place) {
    if (seats_[place].channel.valid() && seats_[place].state == State::kRunning) missing.push_back(place);
  }
  return missing;
}

// What cannot be read is not looked at: the rank is missing then, in the end. One that has closed its end has ended, or
// will.
void ElasticControl::hear(Seat& seat) {
  std::array<char, kMostBytes> bytes;
  while (true) {
    const ssize_t length = ::recv(seat.channel.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (length < 0) return;
    if (length == 0) return seat.channel.reset();
    std::istringstream line(std::string(bytes.data(), static_cast<std::size_t>(length)));
    std::string word;
    std::int64_t has_done = -1;
    line >> word >> has_done;
    if (line.fail() || (word != "ready" && word != "end")) continue;
    seat.state = word == "end" ? State::kAtTheEnd : State::kReady;
    seat.has_done = std::max<std::int64_t>(has_done, -1);
  }
}

Status ElasticControl::serve(std::chrono::steady_clock::time_point now, std::chrono::milliseconds rejoin) {
  std::size_t here = 0;
  std::size_t come = 0;
  bool all_at_the_end = true;
  for (Seat& seat : seats_) {
    if (seat.channel.valid()) hear(seat);
    if (!seat.channel.valid()) continue;
    ++here;
    come += seat.state == State::kRunning ? 0 : 1;
    all_at_the_end = all_at_the_end && seat.state == State::kAtTheEnd;
  }
  if (come == 0) deadline_.reset();
  if (come > 0 && !deadline_) deadline_ = now + rejoin;
  if (come == 0 || come < here) return {};
  deadline_.reset();
  if (!all_at_the_end) return send_on();
  for (Seat& seat : seats_) {
    if (seat.channel.valid()) ::send(seat.channel.get(), "over", 4, MSG_NOSIGNAL | MSG_DONTWAIT);
    seat.state = State::kRunning;
  }
  return {};
}

// To a meeting. The step is the least that somebody has done; whoever dies on the way is missed there, and all come
// back.
Status ElasticControl::send_on() {
  auto id = UniqueId::create({.interface = "lo", .patience = kFirstComes});
  if (!id) return id.error();
  std::int32_t size = 0;
  std::int64_t step = -1;
  std::int32_t source = 0;
  for (const Seat& seat : seats_) {
    if (!seat.channel.valid()) continue;
    if (seat.has_done >= 0 && (step < 0 || seat.has_done < step)) {
      step = seat.has_done;
      source = size;
    }
    ++size;
  }
  ++meetings_;
  std::int32_t rank = 0;
  for (Seat& seat : seats_) {
    if (!seat.channel.valid()) continue;
    const std::string word = fmt::format("go {} {} {} {} {} {}", meetings_, rank++, size,
                                         std::max<std::int64_t>(step, 0), source, id->to_text());
    ::send(seat.channel.get(), word.data(), word.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    seat.state = State::kRunning;
  }
  return {};
}

}  // namespace tutti::tool
