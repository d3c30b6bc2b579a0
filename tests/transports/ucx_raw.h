// For tests of UCX: rank 0 is driven by the test and can violate the protocol; rank 1 is a real rank.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "tests/support/patience.h"
#include "transports/ucx/library.h"
#include "transports/ucx/slots.h"
#include "transports/ucx/wire.h"
#include "ucx_support.h"

namespace tutti::ucx_test {

// The data path of rank 0. It does the connection handshake with a UCX worker of its own, and then sends only the
// messages that the test passes to send().
class RawPath final : public DataPath {
 public:
  RawPath(const DataPathHost& host, std::shared_ptr<UcxContext> context)
      : handshake_channel_(host.handshake_channel), context_(std::move(context)), ucx_(context_->library()) {
    ucp_worker_params_t params{};
    EXPECT_EQ(ucx_.worker_create(context_->handle(), &params, &worker_), UCS_OK);
    ucp_am_handler_param_t handler{};
    handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                         UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
    handler.id = 1;
    handler.flags = UCP_AM_FLAG_WHOLE_MSG;
    handler.cb = &RawPath::on_message;
    handler.arg = this;
    EXPECT_EQ(ucx_.worker_set_am_recv_handler(worker_, &handler), UCS_OK);
  }
  ~RawPath() override { end(); }
  // Ends without a close message.
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
    if (remote_key_ != nullptr) ucx_.rkey_destroy(remote_key_);
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
    const UcxHandshake mine{.key = 1, .slots = slots, .slot_bytes = kSlotBytes};
    std::string text(reinterpret_cast<const char*>(&mine), sizeof(mine));
    text.append(reinterpret_cast<const char*>(address), bytes);
    ucx_.worker_release_address(worker_, address);
    ASSERT_TRUE(handshake_channel_.send(1, 0, text).ok());
  }
  bool connect() {
    const auto text = handshake_channel_.take(1, 0);
    if (!text) return false;
    std::memcpy(&theirs_, text->data(), sizeof(theirs_));
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
    params.address = reinterpret_cast<const ucp_address_t*>(text->data() + sizeof(theirs_));
    params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    EXPECT_EQ(ucx_.ep_create(worker_, &params, &endpoint_), UCS_OK);
    return true;
  }
  // Returns the header of a valid message of call 1, with the receiver's key.
  UcxHeader valid_header(std::uint32_t number, std::uint32_t bytes) const {
    return {.key = theirs_.key, .sender = 0, .bytes = bytes, .number = number, .tag = call(1)};
  }
  // The message travels during the next rounds of both ranks.
  void send(const UcxHeader& header, std::size_t bytes, std::size_t header_bytes = sizeof(UcxHeader)) {
    send(header, std::vector<std::byte>(bytes, std::byte{3}), header_bytes);
  }
  void send(const UcxHeader& header, std::span<const std::byte> data, std::size_t header_bytes = sizeof(UcxHeader)) {
    Sent& sent = sent_.emplace_back(Sent{.header = header, .data = {data.begin(), data.end()}});
    const ucp_request_param_t param{};
    void* request = ucx_.am_send_nbx(endpoint_, 1, &sent.header, header_bytes, sent.data.data(), data.size(), &param);
    ASSERT_FALSE(UCS_PTR_IS_ERR(request));
    if (request != nullptr) requests_.push_back(request);
  }

  // A received message, and the slot content that belongs to it.
  struct ReceivedMessage {
    UcxHeader header;
    std::vector<std::byte> data;
    std::vector<std::byte> in_slot;  // for a kWritten message: the content of its slot on arrival
  };
  std::vector<ReceivedMessage> received;
  // Offers slots of the test, into which the real rank may write. `slots` must outlive this object.
  void offer(const UcxSlots& slots) {
    own_slots_ = &slots;
    UcxHeader header = valid_header(0, static_cast<std::uint32_t>(slots.offer().size()));
    header.kind = UcxMessageType::kOffer;
    send(header, std::as_bytes(std::span(slots.offer())));
  }
  // Writes into a slot that the real rank has offered, and waits until the data is there. Drives only its own
  // worker.
  void write(const UcxHeader& offered, std::span<const std::byte> offer, std::uint32_t slot,
             const std::vector<std::byte>& data, const std::function<void()>& turn) {
    ASSERT_EQ(offered.kind, UcxMessageType::kOffer);
    UcxSlotsOffer where;
    ASSERT_GT(offer.size(), sizeof(where));
    std::memcpy(&where, offer.data(), sizeof(where));
    if (remote_key_ == nullptr) {
      ASSERT_EQ(ucx_.ep_rkey_unpack(endpoint_, offer.data() + sizeof(where), &remote_key_), UCS_OK);
    }
    const ucp_request_param_t param{};
    const std::uint64_t place = where.address + slot * ucx_slot_stride(kSlotBytes);
    await(ucx_.put_nbx(endpoint_, data.data(), data.size(), place, remote_key_, &param), turn);
    await(ucx_.ep_flush_nbx(endpoint_, &param), turn);
  }

 private:
  void await(void* request, const std::function<void()>& turn) {
    ASSERT_FALSE(UCS_PTR_IS_ERR(request));
    if (request == nullptr) return;
    EXPECT_TRUE(eventually([&] { return turn(), ucx_.request_check_status(request) != UCS_INPROGRESS; }));
    EXPECT_EQ(ucx_.request_check_status(request), UCS_OK);
    ucx_.request_free(request);
  }
  static ucs_status_t on_message(void* self, const void* header, std::size_t header_bytes, void* data,
                                 std::size_t bytes, const ucp_am_recv_param_t* param) {
    auto& raw = *static_cast<RawPath*>(self);
    ReceivedMessage& received = raw.received.emplace_back();
    EXPECT_EQ(header_bytes, sizeof(received.header));
    std::memcpy(&received.header, header, sizeof(received.header));
    if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) return UCS_OK;  // the test does not need its payload
    const auto* begin = static_cast<const std::byte*>(data);
    received.data.assign(begin, begin + bytes);
    if (received.header.kind == UcxMessageType::kWritten && raw.own_slots_ != nullptr) {
      const std::byte* slot = raw.own_slots_->slot(received.header.number);
      received.in_slot.assign(slot, slot + received.header.bytes);
    }
    return UCS_OK;
  }
  struct Sent {
    UcxHeader header;
    std::vector<std::byte> data;
  };
  static Error refusal() { return {ErrorCode::kUnsupported, ErrorScope::kCall, -1, "not by hand"}; }
  HandshakeChannel& handshake_channel_;
  std::shared_ptr<UcxContext> context_;
  const UcxLibrary& ucx_;
  ucp_worker_h worker_ = nullptr;
  ucp_ep_h endpoint_ = nullptr;
  ucp_rkey_h remote_key_ = nullptr;
  const UcxSlots* own_slots_ = nullptr;
  UcxHandshake theirs_;
  std::deque<Sent> sent_;
  std::vector<void*> requests_;
};

class RawRank : public testing::Test {
 protected:
  explicit RawRank(UcxPuts puts = UcxPuts::kByCards) : puts_(puts) {}
  void SetUp() override {
    if (!find_ucx()) GTEST_SKIP() << find_ucx().error().message;
    setenv("UCX_TLS", "tcp,self", 1);
    setenv("UCX_NET_DEVICES", "lo", 1);
    for (int rank = 0; rank < 2; ++rank) {
      endpoints_.push_back(tcp_test::endpoint());
      addresses_.push_back(endpoints_.back()->address());
    }
    maker_ = make_ucx_maker(puts_).value();
    const TcpTransportOptions tcp{
        .rank = 0, .ranks = 2, .communicator = tcp_test::kCommunicator, .slots = kSlots, .slot_bytes = kSlotBytes};
    ranks_[0] = OffloadTransport::create(tcp, endpoints_[0], {"", addresses_[1]}, [&](const DataPathHost& host) {
                  auto path = std::make_unique<RawPath>(host, UcxContext::shared(puts_).value());
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
  bool eventually(const std::function<bool()>& done, std::int64_t ms = test::patience().count()) {
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

  const UcxPuts puts_;
  std::vector<std::shared_ptr<TcpEndpoint>> endpoints_;
  std::vector<std::string> addresses_;
  std::shared_ptr<DataPathMaker> maker_;
  std::unique_ptr<OffloadTransport> ranks_[2];
  RawPath* raw_ = nullptr;
  std::unique_ptr<ReceiveConnection> receive_;
};

}  // namespace tutti::ucx_test
