// Tests that the guests of scripts/rdma-vm have a real RDMA stack. They use only libibverbs and no code of Tutti.
// Two reliable-connection queue pairs are connected: one on the first device and one on the last. These are the same
// device, or the two ends of a cable.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <sched.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

namespace {

constexpr std::uint8_t kPort = 1;
constexpr int kIpv4Gid = 1;  // in Soft-RoCE, index 0 is the link-local IPv6 address, and 1 is the IPv4 address
constexpr std::uint32_t kFirstPacket = 100;
constexpr std::chrono::seconds kPatience{60};
constexpr int kRemote = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

struct Closer {
  void operator()(ibv_context* context) const { ibv_close_device(context); }
  void operator()(ibv_pd* domain) const { ibv_dealloc_pd(domain); }
  void operator()(ibv_cq* queue) const { ibv_destroy_cq(queue); }
  void operator()(ibv_qp* pair) const { ibv_destroy_qp(pair); }
  void operator()(ibv_mr* memory) const { ibv_dereg_mr(memory); }
};
template <typename T>
using Owned = std::unique_ptr<T, Closer>;

// One end: a device, a queue pair on it, and a registered buffer.
struct End {
  explicit End(ibv_device* device) : name(ibv_get_device_name(device)), context(ibv_open_device(device)) {}

  // Creates everything up to a queue pair in its first state. `bytes`: the length of the buffer.
  void open(std::size_t bytes) {
    ASSERT_TRUE(context) << name;
    domain.reset(ibv_alloc_pd(context.get()));
    ASSERT_TRUE(domain);
    completions.reset(ibv_create_cq(context.get(), 64, nullptr, nullptr, 0));
    ASSERT_TRUE(completions);
    buffer.resize(bytes);
    memory.reset(ibv_reg_mr(domain.get(), buffer.data(), bytes, kRemote));
    ASSERT_TRUE(memory);
    ibv_qp_init_attr wanted{};
    wanted.send_cq = wanted.recv_cq = completions.get();
    wanted.qp_type = IBV_QPT_RC;
    wanted.cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 0};
    pair.reset(ibv_create_qp(domain.get(), &wanted));
    ASSERT_TRUE(pair);
    ASSERT_EQ(ibv_query_port(context.get(), kPort, &port), 0);
    ASSERT_EQ(ibv_query_gid(context.get(), kPort, kIpv4Gid, &gid), 0);
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_INIT;
    attributes.port_num = kPort;
    attributes.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    ASSERT_EQ(
        ibv_modify_qp(pair.get(), &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
        0);
  }

  void connect(const End& peer) {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_RTR;
    attributes.path_mtu = port.active_mtu;
    attributes.dest_qp_num = peer.pair->qp_num;
    attributes.rq_psn = attributes.sq_psn = kFirstPacket;
    attributes.max_dest_rd_atomic = attributes.max_rd_atomic = 4;
    attributes.min_rnr_timer = 12;
    attributes.ah_attr.is_global = 1;
    attributes.ah_attr.port_num = kPort;
    attributes.ah_attr.grh.dgid = peer.gid;
    attributes.ah_attr.grh.sgid_index = kIpv4Gid;
    attributes.ah_attr.grh.hop_limit = 64;
    ASSERT_EQ(ibv_modify_qp(pair.get(), &attributes,
                            IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
              0)
        << name << " to " << peer.name << ": " << std::strerror(errno);
    attributes.qp_state = IBV_QPS_RTS;
    attributes.timeout = 17;   // 0.5 s, because a busy machine acknowledges slowly
    attributes.retry_cnt = 6;  // not 7, because 7 means "retry forever" in Soft-RoCE
    attributes.rnr_retry = 7;
    ASSERT_EQ(ibv_modify_qp(pair.get(), &attributes,
                            IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                                IBV_QP_MAX_QP_RD_ATOMIC),
              0);
  }

  ibv_sge whole() {
    return {.addr = reinterpret_cast<std::uintptr_t>(buffer.data()),
            .length = static_cast<std::uint32_t>(buffer.size()),
            .lkey = memory->lkey};
  }

  void post_receive() {
    ibv_recv_wr request{};
    ibv_recv_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_recv(pair.get(), &request, &bad), 0);
  }

  // Posts an operation on the whole of both buffers. `key` is the key of the peer's buffer.
  void post(ibv_wr_opcode operation, const End& peer, std::uint32_t key, std::uint32_t immediate = 0) {
    ibv_sge all = whole();
    ibv_send_wr request{};
    ibv_send_wr* bad = nullptr;
    request.sg_list = &all;
    request.num_sge = 1;
    request.opcode = operation;
    request.send_flags = IBV_SEND_SIGNALED;
    request.imm_data = htonl(immediate);
    request.wr.rdma.remote_addr = reinterpret_cast<std::uintptr_t>(peer.buffer.data());
    request.wr.rdma.rkey = key;
    ASSERT_EQ(ibv_post_send(pair.get(), &request, &bad), 0);
  }

  void wait(ibv_wc& completion) {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    int count = 0;
    while ((count = ibv_poll_cq(completions.get(), 1, &completion)) == 0) {
      ASSERT_LT(std::chrono::steady_clock::now(), end) << name << ": timeout while waiting for a completion";
      sched_yield();
    }
    ASSERT_EQ(count, 1);
  }

  // A counter of the driver, for example sent_pkts. Returns -1 if it cannot be read.
  long long counter(const std::string& which) const {
    const std::string path = "/sys/class/infiniband/" + name + "/ports/1/hw_counters/" + which;
    std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "r"), std::fclose);
    long long value = -1;
    if (!file || std::fscanf(file.get(), "%lld", &value) != 1) return -1;
    return value;
  }

  std::string name;
  Owned<ibv_context> context;
  Owned<ibv_pd> domain;
  Owned<ibv_cq> completions;
  std::vector<std::uint8_t> buffer;
  Owned<ibv_mr> memory;
  Owned<ibv_qp> pair;
  ibv_port_attr port{};
  ibv_gid gid{};
};

class Device : public testing::Test {
 protected:
  static constexpr std::size_t kBytes = (1 << 20) + 13;

  void SetUp() override {
    int count = 0;
    const std::unique_ptr<ibv_device*, void (*)(ibv_device**)> list(ibv_get_device_list(&count), ibv_free_device_list);
    ASSERT_TRUE(list);
    ASSERT_GE(count, 1) << "no RDMA device: run this with scripts/rdma-vm run -- ...";
    near_ = std::make_unique<End>(list.get()[0]);
    far_ = std::make_unique<End>(list.get()[count - 1]);
    ASSERT_NO_FATAL_FAILURE(near_->open(kBytes));
    ASSERT_NO_FATAL_FAILURE(far_->open(kBytes));
    ASSERT_NO_FATAL_FAILURE(near_->connect(*far_));
    ASSERT_NO_FATAL_FAILURE(far_->connect(*near_));
    std::iota(near_->buffer.begin(), near_->buffer.end(), std::uint8_t{7});
  }

  std::unique_ptr<End> near_, far_;
};

TEST_F(Device, PortsAreActiveEthernet) {
  for (const End* end : {near_.get(), far_.get()}) {
    EXPECT_EQ(end->port.state, IBV_PORT_ACTIVE) << end->name;
    EXPECT_EQ(end->port.link_layer, IBV_LINK_LAYER_ETHERNET) << end->name;
  }
}

TEST_F(Device, WritesWithImmediateBringTheirBytes) {
  constexpr std::uint32_t kWord = 0xC0FFEE;
  ASSERT_NO_FATAL_FAILURE(far_->post_receive());
  ASSERT_NO_FATAL_FAILURE(near_->post(IBV_WR_RDMA_WRITE_WITH_IMM, *far_, far_->memory->rkey, kWord));
  ibv_wc arrived{}, sent{};
  ASSERT_NO_FATAL_FAILURE(far_->wait(arrived));
  EXPECT_EQ(arrived.status, IBV_WC_SUCCESS) << ibv_wc_status_str(arrived.status);
  EXPECT_EQ(arrived.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
  EXPECT_EQ(ntohl(arrived.imm_data), kWord);
  EXPECT_EQ(arrived.byte_len, kBytes);
  EXPECT_TRUE(near_->buffer == far_->buffer) << "the bytes must be there when the immediate arrives";
  ASSERT_NO_FATAL_FAILURE(near_->wait(sent));
  EXPECT_EQ(sent.status, IBV_WC_SUCCESS) << ibv_wc_status_str(sent.status);
}

TEST_F(Device, ReadsFetchThePeersBytes) {
  ASSERT_NO_FATAL_FAILURE(far_->post(IBV_WR_RDMA_READ, *near_, near_->memory->rkey));
  ibv_wc fetched{};
  ASSERT_NO_FATAL_FAILURE(far_->wait(fetched));
  EXPECT_EQ(fetched.status, IBV_WC_SUCCESS) << ibv_wc_status_str(fetched.status);
  EXPECT_TRUE(near_->buffer == far_->buffer);
}

TEST_F(Device, AWrongKeyIsRefusedAndEndsThePair) {
  ASSERT_NO_FATAL_FAILURE(near_->post(IBV_WR_RDMA_WRITE, *far_, far_->memory->rkey ^ 0x5a00));
  ibv_wc refused{};
  ASSERT_NO_FATAL_FAILURE(near_->wait(refused));
  EXPECT_EQ(refused.status, IBV_WC_REM_ACCESS_ERR) << ibv_wc_status_str(refused.status);
  EXPECT_EQ(far_->buffer, std::vector<std::uint8_t>(kBytes)) << "the refused write must not change the buffer";
  ASSERT_NO_FATAL_FAILURE(near_->post(IBV_WR_RDMA_WRITE, *far_, far_->memory->rkey));
  ASSERT_NO_FATAL_FAILURE(near_->wait(refused));
  EXPECT_EQ(refused.status, IBV_WC_WR_FLUSH_ERR) << ibv_wc_status_str(refused.status);
}

TEST_F(Device, BetweenTwoDevicesThePacketsAreReal) {
  if (near_->name == far_->name) GTEST_SKIP() << "only one device; run with scripts/rdma-vm run --cables 1 -- ...";
  const long long before = far_->counter("rcvd_pkts");
  ASSERT_GE(before, 0);
  ASSERT_NO_FATAL_FAILURE(near_->post(IBV_WR_RDMA_WRITE, *far_, far_->memory->rkey));
  ibv_wc sent{};
  ASSERT_NO_FATAL_FAILURE(near_->wait(sent));
  EXPECT_EQ(sent.status, IBV_WC_SUCCESS) << ibv_wc_status_str(sent.status);
  EXPECT_GE(far_->counter("rcvd_pkts") - before, static_cast<long long>(kBytes / 4096));
}

}  // namespace
