#include "tools/run/elastic.h"

#include <errno.h>
#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <sstream>
#include <system_error>
#include <utility>

#include "tools/common/system_error.h"
#include "tools/run/launch.h"
#include "tutti/unique_id.h"

namespace tutti::tool {
namespace {

constexpr std::size_t kMostBytes = 64;                    // of what a rank says
constexpr std::chrono::milliseconds kFirstComes{60'000};  // to the place of a meeting, or it closes

// "2:4" to 2 and 4. False: it is no two numbers.
bool read_two(const std::string& text, std::int32_t& least, std::int32_t& most) {
  const char* const end = text.data() + text.size();
  const auto [colon, wrong] = std::from_chars(text.data(), end, least);
  if (wrong != std::errc() || colon == end || *colon != ':') return false;
  const auto [last, wrong_too] = std::from_chars(colon + 1, end, most);
  return wrong_too == std::errc() && last == end;
}

}  // namespace

Status parse_elastic(const std::string& text, std::int32_t& ranks, ElasticBounds& bounds) {
  std::int32_t least = 0;
  std::int32_t most = 0;
  const bool two = read_two(text, least, most);
  if (!two || least < 1 || least > most || most > kMaxLocalRanks || (ranks != 0 && ranks != most)) {
    return Error{.code = ErrorCode::kInvalidArgument,
                 .message = fmt::format("--elastic {}: write MIN:MAX, 1 <= MIN <= MAX <= {}; MAX ranks are started, "
                                        "and the job goes on with MIN",
                                        text, kMaxLocalRanks)};
  }
  ranks = most;
  bounds.least = least;
  return {};
}

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
    if (seats_[place].taken() && !seats_[place].has_come()) missing.push_back(place);
  }
  return missing;
}

// What cannot be read is not looked at: the rank is missing then, in the end. One that has closed its end has ended, or
// will; till then it is missing, too, since it may have died, and is to be replaced before the others go on.
void ElasticControl::hear(Seat& seat) {
  std::array<char, kMostBytes> bytes;
  while (true) {
    const ssize_t length = ::recv(seat.channel.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (length < 0) return;
    if (length == 0) {
      seat.channel.reset();
      seat.state = State::kClosed;
      return;
    }
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
    if (!seat.taken()) continue;
    ++here;
    come += seat.has_come() ? 1 : 0;
    all_at_the_end = all_at_the_end && seat.state == State::kAtTheEnd;
  }
  if (come == 0) deadline_.reset();
  if (come > 0 && !deadline_) deadline_ = now + rejoin;
  if (come == 0 || come < here) return {};
  deadline_.reset();
  if (!all_at_the_end) return send_on();
  is_over_ = true;
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
