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

constexpr std::size_t kMostBytes = 64;  // longest packet from a rank
// How long the rendezvous server waits for the first rank before it closes.
constexpr std::chrono::milliseconds kFirstRankTimeout{60'000};

// Parses "2:4" to least = 2 and most = 4. Returns false if the text is not two numbers with a colon between them.
bool parse_two(const std::string& text, std::int32_t& least, std::int32_t& most) {
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
  const bool two = parse_two(text, least, most);
  if (!two || least < 1 || least > most || most > kMaxLocalRanks || (ranks != 0 && ranks != most)) {
    return Error{.code = ErrorCode::kInvalidArgument,
                 .message = fmt::format("--elastic {}: write MIN:MAX, 1 <= MIN <= MAX <= {}; MAX ranks are started, "
                                        "and the job goes on with MIN",
                                        text, kMaxLocalRanks)};
  }
  ranks = most;
  bounds.min_ranks = least;
  return {};
}

Result<Fd> ElasticControl::add(std::size_t index) {
  restart_wait();
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return system_error("cannot make a socket for a rank", errno);
  }
  members_.at(index) = {.channel = Fd(ends[0])};
  return Fd(ends[1]);
}

void ElasticControl::ended(std::size_t index) {
  members_.at(index) = {};
  for (const Member& member : members_) {
    if (member.channel.valid()) ::send(member.channel.get(), "lost", 4, MSG_NOSIGNAL | MSG_DONTWAIT);
  }
}

std::vector<int> ElasticControl::descriptors() const {
  std::vector<int> descriptors;
  for (const Member& member : members_) {
    if (member.channel.valid()) descriptors.push_back(member.channel.get());
  }
  return descriptors;
}

std::vector<std::size_t> ElasticControl::missing() const {
  std::vector<std::size_t> missing;
  for (std::size_t index = 0; index < members_.size(); ++index) {
    if (members_[index].taken() && !members_[index].is_waiting()) missing.push_back(index);
  }
  return missing;
}

// Reads all packets of one rank that have arrived. Malformed packets are ignored; the wait for the rank may then time
// out. A rank that has closed its end of the socket counts as not ready until its process ends, because it may have
// died, and must then be replaced before the other ranks continue.
void ElasticControl::receive_packets(Member& member) {
  std::array<char, kMostBytes> bytes;
  while (true) {
    const ssize_t length = ::recv(member.channel.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (length < 0) return;
    if (length == 0) {
      member.channel.reset();
      member.state = State::kClosed;
      return;
    }
    std::istringstream line(std::string(bytes.data(), static_cast<std::size_t>(length)));
    std::string word;
    std::int64_t has_done = -1;
    line >> word >> has_done;
    if (line.fail() || (word != "ready" && word != "end")) continue;
    member.state = word == "end" ? State::kDone : State::kReady;
    member.has_done = std::max<std::int64_t>(has_done, -1);
  }
}

Status ElasticControl::serve(std::chrono::steady_clock::time_point now, std::chrono::milliseconds rejoin) {
  std::size_t alive = 0;
  std::size_t waiting = 0;
  bool all_done = true;
  for (Member& member : members_) {
    if (member.channel.valid()) receive_packets(member);
    if (!member.taken()) continue;
    ++alive;
    waiting += member.is_waiting() ? 1 : 0;
    all_done = all_done && member.state == State::kDone;
  }
  if (waiting == 0) deadline_.reset();
  if (waiting > 0 && !deadline_) deadline_ = now + rejoin;
  if (waiting == 0 || waiting < alive) return {};
  deadline_.reset();
  if (!all_done) return start_set_up();
  is_over_ = true;
  for (Member& member : members_) {
    if (member.channel.valid()) ::send(member.channel.get(), "over", 4, MSG_NOSIGNAL | MSG_DONTWAIT);
    member.state = State::kRunning;
  }
  return {};
}

// Makes the ranks set up a new communicator: sends each rank the number of this set-up, its rank number, the number of
// ranks, the step at which all continue, the rank from which the others copy the state, and a unique id. The step is
// the lowest number of steps that a rank with a state has done, or 0 if no rank has a state. If a rank dies during the
// set-up, the set-up or the first calls after it fail on the other ranks, and these become ready again.
Status ElasticControl::start_set_up() {
  auto id = UniqueId::create({.interface = "lo", .timeout = kFirstRankTimeout});
  if (!id) return id.error();
  std::int32_t size = 0;
  std::int64_t step = -1;
  std::int32_t source = 0;
  for (const Member& member : members_) {
    if (!member.channel.valid()) continue;
    if (member.has_done >= 0 && (step < 0 || member.has_done < step)) {
      step = member.has_done;
      source = size;
    }
    ++size;
  }
  ++meetings_;
  std::int32_t rank = 0;
  for (Member& member : members_) {
    if (!member.channel.valid()) continue;
    const std::string word = fmt::format("go {} {} {} {} {} {}", meetings_, rank++, size,
                                         std::max<std::int64_t>(step, 0), source, id->to_text());
    ::send(member.channel.get(), word.data(), word.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    member.state = State::kRunning;
  }
  return {};
}

}  // namespace tutti::tool
