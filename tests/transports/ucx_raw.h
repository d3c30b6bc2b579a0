// Rank 0 by hand, which may break the rules, and rank 1 as it is, over UCX.
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

// A peer by hand: introduces itself with a worker of its own, and sends what it is told to.
class RawPath final : public DataPath {
 public:
  RawPath(const DataPathHost& host, std::shared_ptr<UcxContext> context)
      : introductions_(host.introductions), context_(std::move(context)), ucx_(context_->library()) {
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
    send(header, std::vector<std::byte>(bytes, std::byte{3}), header_bytes);
  }
  void send(const UcxHeader& header, std::span<const std::byte> data, std::size_t header_bytes = sizeof(UcxHeader)) {
    Sent& sent = sent_.emplace_back(Sent{.header = header, .data = {data.begin(), data.end()}});
    const ucp_request_param_t param{};
    void* request = ucx_.am_send_nbx(endpoint_, 1, &sent.header, header_bytes, sent.data.data(), data.size(), &param);
    ASSERT_FALSE(UCS_PTR_IS_ERR(request));
    if (request != nullptr) requests_.push_back(request);
  }

  // What has come, and what has been offered with it.
  struct Come {
    UcxHeader header;
    std::vector<std::byte> data;
    std::vector<std::byte> in_slot;  // of one that was written: what lies there at its coming
  };
  std::vector<Come> come;
  // Offers slots of its own, in which the rank may write: `slots` of them outlive the path.
  void offer(const UcxSlots& slots) {
    own_slots_ = &slots;
    UcxHeader header = sound(0, static_cast<std::uint32_t>(slots.offer().size()));
    header.kind = UcxKind::kOffer;
    send(header, std::as_bytes(std::span(slots.offer())));
  }
  // Writes into the slots that the rank has offered, and waits until it is there. Drives the own worker alone.
  void write(const UcxHeader& offered, std::span<const std::byte> offer, std::uint32_t slot,
             const std::vector<std::byte>& data, const std::function<void()>& turn) {
    ASSERT_EQ(offered.kind, UcxKind::kOffer);
    UcxOffer where;
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
    Come& come = raw.come.emplace_back();
    EXPECT_EQ(header_bytes, sizeof(come.header));
    std::memcpy(&come.header, header, sizeof(come.header));
    if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) return UCS_OK;  // its payload is not of interest
    const auto* begin = static_cast<const std::byte*>(data);
    come.data.assign(begin, begin + bytes);
    if (come.header.kind == UcxKind::kWritten && raw.own_slots_ != nullptr) {
      const std::byte* slot = raw.own_slots_->slot(come.header.number);
      come.in_slot.assign(slot, slot + come.header.bytes);
    }
    return UCS_OK;
  }
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
  ucp_rkey_h remote_key_ = nullptr;
  const UcxSlots* own_slots_ = nullptr;
  UcxIntroduction theirs_;
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
