// The UCX transport when a peer breaks the rules or its process ends.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <deque>
#include <optional>

#include "transports/ucx/library.h"
#include "transports/ucx/wire.h"
#include "ucx_support.h"

namespace tutti::ucx_test {
namespace {

// A peer by hand: introduces itself with a worker of its own, and sends what it is told to.
class RawPath final : public DataPath {
 public:
  RawPath(const DataPathHost& host, std::shared_ptr<UcxContext> context)
      : introductions_(host.introductions), context_(std::move(context)), ucx_(context_->library()) {
    ucp_worker_params_t params{};
    EXPECT_EQ(ucx_.worker_create(context_->handle(), &params, &worker_), UCS_OK);
  }
  ~RawPath() override { end(); }
  // Without a word.
  void end() {
    if (worker_ == nullptr) return;
    if (endpoint_ != nullptr) {
      ucp_request_param_t param{};
      param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
      param.flags = UCP_EP_CLOSE_FLAG_FORCE;
      void* request = ucx_.ep_close_nbx(endpoint_, &param);
      if (UCS_PTR_IS_PTR(request)) {
        while (ucx_.request_check_status(request) == UCS_INPROGRESS) ucx_.worker_progress(worker_);
        ucx_.request_free(request);
      }
    }
    for (void* request : requests_) ucx_.request_free(request);
    ucx_.worker_destroy(std::exchange(worker_, nullptr));
  }
  std::string_view name() const override { return "raw"; }
  bool reaches(std::uint32_t) const override { return true; }
  Result<std::unique_ptr<SendConnection>> open_send(std::uint32_t, std::uint16_t) override { return refusal(); }
  Result<std::unique_ptr<ReceiveConnection>> open_receive(std::uint32_t, std::uint16_t) override { return refusal(); }
  void pump() override {
    if (worker_ != nullptr) ucx_.worker_progress(worker_);
  }
  bool flush() override { return true; }
  std::optional<std::string> broken(std::uint32_t) override { return std::nullopt; }
  void drain(std::int64_t) override {}
  std::string troubles() override { return ""; }

  void introduce(std::uint32_t slots = kSlots) {
    ucp_address_t* address = nullptr;
    std::size_t bytes = 0;
    ASSERT_EQ(ucx_.worker_get_address(worker_, &address, &bytes), UCS_OK);
    const UcxIntroduction mine{.key = 1, .slots = slots, .slot_bytes = kSlotBytes};
    std::string text(reinterpret_cast<const char*>(&mine), sizeof(mine));
    text.append(reinterpret_cast<const char*>(address), bytes);
    ucx_.worker_release_address(worker_, address);
    ASSERT_TRUE(introductions_.introduce(1, 0, text).ok());
  }
  bool connect() {
    const auto text = introductions_.take(1, 0);
    if (!text) return false;
    std::memcpy(&theirs_, text->data(), sizeof(theirs_));
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
    params.address = reinterpret_cast<const ucp_address_t*>(text->data() + sizeof(theirs_));
    params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    EXPECT_EQ(ucx_.ep_create(worker_, &params, &endpoint_), UCS_OK);
    return true;
  }
  // As a sound message of call 1 would be, with the receiver's key.
  UcxHeader sound(std::uint32_t number, std::uint32_t bytes) const {
    return {.key = theirs_.key, .sender = 0, .bytes = bytes, .number = number, .tag = call(1)};
  }
  // Goes with the next rounds of both ranks.
  void send(const UcxHeader& header, std::size_t bytes, std::size_t header_bytes = sizeof(UcxHeader)) {
    Sent& sent = sent_.emplace_back(Sent{.header = header, .data = std::vector<std::byte>(bytes, std::byte{3})});
    const ucp_request_param_t param{};
    void* request = ucx_.am_send_nbx(endpoint_, 1, &sent.header, header_bytes, sent.data.data(), bytes, &param);
    ASSERT_FALSE(UCS_PTR_IS_ERR(request));
    if (request != nullptr) requests_.push_back(request);
  }

 private:
  struct Sent {
    UcxHeader header;
    std::vector<std::byte> data;
  };
  static Error refusal() { return {ErrorCode::kUnsupported, ErrorScope::kCall, -1, "not by hand"}; }
  Introductions& introductions_;
  std::shared_ptr<UcxContext> context_;
  const UcxLibrary& ucx_;
  ucp_worker_h worker_ = nullptr;
  ucp_ep_h endpoint_ = nullptr;
  UcxIntroduction theirs_;
  std::deque<Sent> sent_;
  std::vector<void*> requests_;
};

class UcxFaults : public testing::Test {
 protected:
  void SetUp() override {
    if (!find_ucx()) GTEST_SKIP() << find_ucx().error().message;
    setenv("UCX_TLS", "tcp,self", 1);
    setenv("UCX_NET_DEVICES", "lo", 1);
    for (int rank = 0; rank < 2; ++rank) {
      endpoints_.push_back(tcp_test::endpoint());
      addresses_.push_back(endpoints_.back()->address());
    }
    maker_ = make_ucx_maker().value();
    const TcpTransportOptions tcp{
        .rank = 0, .ranks = 2, .communicator = tcp_test::kCommunicator, .slots = kSlots, .slot_bytes = kSlotBytes};
    ranks_[0] = OffloadTransport::create(tcp, endpoints_[0], {"", addresses_[1]}, [&](const DataPathHost& host) {
                  auto path = std::make_unique<RawPath>(host, UcxContext::shared().value());
                  raw_ = path.get();
                  return Result<std::unique_ptr<DataPath>>(std::move(path));
                }).value();
    TcpTransportOptions other = tcp;
    other.rank = 1;
    const DataPathOptions path{.rank = 1,
                               .ranks = 2,
                               .slots = kSlots,
                               .slot_bytes = kSlotBytes,
                               .lanes = tcp.lanes,
                               .offers = {maker_->offer(), ""}};
    ranks_[1] = OffloadTransport::create(other, endpoints_[1], {addresses_[0], ""}, [&](const DataPathHost& host) {
                  return maker_->make(host, path);
                }).value();
  }
  bool eventually(const std::function<bool()>& done, int ms = 10000) {
    return tcp_test::eventually(
        [&] {
          for (const auto& rank : ranks_) {
            rank->pump();
            rank->flush();
          }
          return done();
        },
        ms);
  }
  void meet() {
    receive_ = ranks_[1]->open_receive(0, 0).value();
    raw_->introduce();
    ASSERT_TRUE(eventually([&] { return raw_->connect(); }));
  }
  Arrival await(int ms = 10000) {
    Arrival arrival = Arrival::kNothing;
    eventually([&] { return (arrival = receive_->arrival(call(1))) != Arrival::kNothing; }, ms);
    return arrival;
  }

  std::vector<std::shared_ptr<TcpEndpoint>> endpoints_;
  std::vector<std::string> addresses_;
  std::shared_ptr<DataPathMaker> maker_;
  std::unique_ptr<OffloadTransport> ranks_[2];
  RawPath* raw_ = nullptr;
  std::unique_ptr<ReceiveConnection> receive_;
};

TEST_F(UcxFaults, TheRawPeerIsSoundWhereItWantsToBe) {
  meet();
  raw_->send(raw_->sound(1, 20), 20);
  EXPECT_EQ(await(100), Arrival::kNothing) << "message 0 comes first";
  raw_->send(raw_->sound(0, 10), 10);
  ASSERT_EQ(await(), Arrival::kMessage);
  EXPECT_EQ(receive_->front().bytes, 10u);
  receive_->release();
  ASSERT_EQ(await(), Arrival::kMessage);
  EXPECT_EQ(receive_->front().bytes, 20u);
  receive_->release();
}

TEST_F(UcxFaults, WhatNoSoundPeerSendsIsCorrupt) {
  using Change = void (*)(UcxHeader&);
  const Change changes[] = {
      [](UcxHeader& header) { header.number = kSlots; },     // beyond the credits
      [](UcxHeader& header) { header.number = ~0u; },        // long released
      [](UcxHeader& header) { header.bytes = 11; },          // not what has come
      [](UcxHeader& header) { header.tag.sequence = 0; },    // no call
      [](UcxHeader& header) { header.kind = UcxKind{77}; },  // nothing known
  };
  for (const Change change : changes) {
    receive_.reset();
    ranks_[0].reset();
    ranks_[1].reset();
    endpoints_.clear();
    addresses_.clear();
    SetUp();
    meet();
    UcxHeader header = raw_->sound(0, 10);
    change(header);
    raw_->send(header, 10);
    EXPECT_EQ(await(), Arrival::kCorrupt) << &change - changes;
  }
}

TEST_F(UcxFaults, AMessageLongerThanASlotIsCorrupt) {
  meet();
  raw_->send(raw_->sound(0, 2 * kSlotBytes), 2 * kSlotBytes);
  EXPECT_EQ(await(), Arrival::kCorrupt);
}

TEST_F(UcxFaults, AMessageTwiceIsCorruptAndTheFirstIsGood) {
  meet();
  raw_->send(raw_->sound(0, 10), 10);
  ASSERT_EQ(await(), Arrival::kMessage);
  raw_->send(raw_->sound(0, 10), 10);
  ASSERT_EQ(await(), Arrival::kMessage);
  receive_->release();
  EXPECT_EQ(await(), Arrival::kCorrupt);
}

TEST_F(UcxFaults, StrangersAreRefusedAndCounted) {
  meet();
  const auto refused = [&](const char* count) {
    return eventually([&] { return ranks_[1]->troubles().find(count) != std::string::npos; });
  };
  UcxHeader header = raw_->sound(0, 10);
  header.key ^= 1;
  raw_->send(header, 10);
  EXPECT_TRUE(refused("refused 1 ")) << ranks_[1]->troubles();
  header = raw_->sound(0, 10);
  header.sender = 2;
  raw_->send(header, 10);
  EXPECT_TRUE(refused("refused 2 ")) << ranks_[1]->troubles();
  header = raw_->sound(0, 10);
  header.lane = 1000;
  raw_->send(header, 10);
  EXPECT_TRUE(refused("refused 3 ")) << ranks_[1]->troubles();
  raw_->send(raw_->sound(0, 10), 10, 20);
  EXPECT_TRUE(refused("refused 4 ")) << ranks_[1]->troubles();
  raw_->send(raw_->sound(0, 10), 10);
  EXPECT_EQ(await(), Arrival::kMessage) << "and the sound peer is heard";
}

TEST_F(UcxFaults, CreditsThatWereNeverSentForAreIgnored) {
  meet();
  auto send = ranks_[1]->open_send(0, 0).value();
  UcxHeader header = raw_->sound(0, 0);
  header.kind = UcxKind::kCredit;
  header.released = 1000;
  raw_->send(header, 0);
  raw_->send(raw_->sound(0, 1), 1);
  ASSERT_EQ(await(), Arrival::kMessage);
  std::size_t sent = 0;
  const std::byte byte{1};
  while (send->ready() && sent < 50) send->send_from(&byte, 1, call(1)), ++sent;
  EXPECT_EQ(sent, kSlots);
}

TEST_F(UcxFaults, AnIntroductionThatCannotBeReadIsAnErrorWithTheRank) {
  receive_ = ranks_[1]->open_receive(0, 0).value();
  raw_->introduce(kSlots + 1);
  EXPECT_TRUE(eventually([&] { return ranks_[1]->peer_status(0).life == PeerLife::kUnreachable; }));
  EXPECT_NE(ranks_[1]->peer_trouble(0).find("introduced"), std::string::npos) << ranks_[1]->peer_trouble(0);
  EXPECT_NE(ranks_[1]->troubles().find("rank 0"), std::string::npos) << ranks_[1]->troubles();
}

TEST_F(UcxFaults, AnEndpointThatEndsWithoutAWordMakesThePeerUnreachable) {
  meet();
  auto send = ranks_[1]->open_send(0, 0).value();
  raw_->send(raw_->sound(0, 10), 10);
  ASSERT_EQ(await(), Arrival::kMessage);
  raw_->end();
  ASSERT_TRUE(tcp_test::eventually(
      [&] {
        ranks_[1]->pump();
        return ranks_[1]->peer_status(0).life == PeerLife::kUnreachable;
      },
      10000));
  EXPECT_NE(ranks_[1]->peer_trouble(0).find("UCX"), std::string::npos) << ranks_[1]->peer_trouble(0);
  EXPECT_FALSE(send->ready()) << "nothing that is sent would arrive";
  EXPECT_FALSE(send->handed_over()) << "who waits learns that the peer cannot be reached";
  receive_->release();
  EXPECT_EQ(receive_->arrival(call(1)), Arrival::kNothing);
  EXPECT_FALSE(receive_->may_bring_more());
}

// Of a real process.
TEST(UcxDeath, OfAProcessIsALossThatTcpNames) {
  if (!find_ucx()) GTEST_SKIP() << find_ucx().error().message;
  setenv("UCX_TLS", "tcp,self", 1);
  setenv("UCX_NET_DEVICES", "lo", 1);
  int to_child[2];
  int to_parent[2];
  ASSERT_EQ(pipe(to_child), 0);
  ASSERT_EQ(pipe(to_parent), 0);
  const pid_t child = fork();  // before any of UCX has begun
  ASSERT_GE(child, 0);
  const std::uint32_t rank = child == 0 ? 1 : 0;
  const auto own = tcp_test::endpoint();
  std::string mine = own->address();
  mine.resize(200, '\0');
  ASSERT_EQ(write(rank == 0 ? to_child[1] : to_parent[1], mine.data(), mine.size()), 200);
  std::string theirs(200, '\0');
  ASSERT_EQ(read(rank == 0 ? to_parent[0] : to_child[0], theirs.data(), theirs.size()), 200);
  theirs.resize(theirs.find('\0'));
  const auto maker = make_ucx_maker().value();
  std::vector<std::string> addresses = {theirs, theirs};
  std::vector<std::string> offers(2, maker->offer());
  addresses[rank].clear();
  offers[rank].clear();
  const TcpTransportOptions tcp{.rank = rank, .ranks = 2, .communicator = 5, .slots = kSlots, .slot_bytes = kSlotBytes};
  const DataPathOptions path{
      .rank = rank, .ranks = 2, .slots = kSlots, .slot_bytes = kSlotBytes, .lanes = tcp.lanes, .offers = offers};
  auto transport = OffloadTransport::create(tcp, own, addresses, [&](const DataPathHost& host) {
                     return maker->make(host, path);
                   }).value();
  auto send = transport->open_send(1 - rank, 0).value();
  auto receive = transport->open_receive(1 - rank, 0).value();
  send->send_from(nullptr, 0, call(1));
  const auto turn = [&] {
    transport->pump();
    transport->flush();
  };
  if (rank == 1) {
    for (;;) turn();  // until it is killed
  }
  Arrival arrival = Arrival::kNothing;
  EXPECT_TRUE(eventually([&] { return turn(), (arrival = receive->arrival(call(1))) != Arrival::kNothing; }, 20000));
  EXPECT_EQ(arrival, Arrival::kMessage);
  kill(child, SIGKILL);
  PeerLife life = PeerLife::kLive;
  EXPECT_TRUE(eventually([&] { return turn(), (life = transport->peer_status(1).life) != PeerLife::kLive; }));
  EXPECT_EQ(life, PeerLife::kLost) << "its TCP connections say more than UCX does";
  EXPECT_TRUE(eventually([&] { return turn(), !transport->peer_trouble(1).empty(); })) << "UCX says so too";
  waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace tutti::ucx_test
