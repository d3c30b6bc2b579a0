// Tests of how events that a device reports are handled. They need no device.
#include <gtest/gtest.h>

#include "transports/verbs/reports.h"

namespace tutti {
namespace {

ibv_async_event of_port(ibv_event_type type, int port) {
  ibv_async_event event{};
  event.element.port_num = port;
  event.event_type = type;
  return event;
}

ibv_async_event of_pair(ibv_event_type type, ibv_qp* pair) {
  ibv_async_event event{};
  event.element.qp = pair;
  event.event_type = type;
  return event;
}

TEST(DeviceReports, OfAPortStandUntilItIsUp) {
  DeviceReports reports("mlx5_0");
  EXPECT_EQ(reports.trouble(1), "");
  reports.take(of_port(IBV_EVENT_PORT_ERR, 2), "port error");
  EXPECT_EQ(reports.trouble(2), "mlx5_0 port 2 is down");
  EXPECT_TRUE(reports.down_since_ns(2));
  EXPECT_EQ(reports.trouble(1), "");
  EXPECT_FALSE(reports.down_since_ns(1));
  reports.take(of_port(IBV_EVENT_PORT_ACTIVE, 2), "port active");
  EXPECT_EQ(reports.trouble(2), "");
  EXPECT_FALSE(reports.down_since_ns(2));
  reports.take(of_port(IBV_EVENT_GID_CHANGE, 1), "GID table change");
  EXPECT_EQ(reports.trouble(1), "the addresses of mlx5_0 port 1 have changed (GIDs)");
  reports.take(of_port(IBV_EVENT_DEVICE_FATAL, 0), "local catastrophic error");
  EXPECT_EQ(reports.trouble(1), "mlx5_0 has failed: local catastrophic error");
  EXPECT_TRUE(reports.dead());
}

TEST(DeviceReports, OfAQueuePairAreItsOwn) {
  for (const ibv_event_type type :
       {IBV_EVENT_QP_FATAL, IBV_EVENT_QP_REQ_ERR, IBV_EVENT_QP_ACCESS_ERR, IBV_EVENT_QP_LAST_WQE_REACHED}) {
    DeviceReports reports("mlx5_0");
    ibv_qp ours{};
    ibv_qp other{};
    ibv_qp strange{};
    reports.watch(&ours);
    reports.watch(&other);
    EXPECT_FALSE(reports.any_failure());
    reports.take(of_pair(type, &ours), "it broke");
    reports.take(of_pair(type, &strange), "it is not ours any more");
    EXPECT_TRUE(reports.any_failure());
    EXPECT_EQ(reports.failure(&ours), "it broke");
    EXPECT_EQ(reports.failure(&other), "");
    EXPECT_EQ(reports.failure(&strange), "");
    for (int port = 0; port < 256; ++port) {  // the pointer must not be mistaken for a port number
      EXPECT_EQ(reports.trouble(static_cast<std::uint8_t>(port)), "");
    }
    EXPECT_FALSE(reports.dead());
    reports.take(of_pair(IBV_EVENT_QP_FATAL, &ours), "and again");
    EXPECT_EQ(reports.failure(&ours), "it broke") << "the first failure is kept, because it is the cause";
    reports.unwatch(&ours);
    EXPECT_FALSE(reports.any_failure());
    EXPECT_EQ(reports.failure(&ours), "");
    reports.watch(&ours);
    EXPECT_EQ(reports.failure(&ours), "") << "a new queue pair at the same address has no failure";
  }
}

TEST(DeviceReports, OfAQueueLeaveTheDeviceToOthers) {
  DeviceReports reports("mlx5_0");
  ibv_cq queue{};
  ibv_srq receives{};
  reports.watch(static_cast<const void*>(&queue));
  reports.watch(static_cast<const void*>(&receives));
  ibv_async_event event{};
  event.element.cq = &queue;
  event.event_type = IBV_EVENT_CQ_ERR;
  reports.take(event, "CQ error");
  EXPECT_EQ(reports.failure(&queue), "CQ error");
  EXPECT_EQ(reports.failure(&receives), "");
  event.element.srq = &receives;
  event.event_type = IBV_EVENT_SRQ_ERR;
  reports.take(event, "SRQ catastrophic error");
  EXPECT_EQ(reports.failure(&receives), "SRQ catastrophic error");
  EXPECT_FALSE(reports.dead());
}

TEST(DeviceReports, OfOtherThingsAreOfNoConsequence) {
  DeviceReports reports("mlx5_0");
  ibv_qp pair{};
  reports.watch(&pair);
  reports.take(of_pair(IBV_EVENT_COMM_EST, &pair), "communication established");
  reports.take(of_pair(IBV_EVENT_SQ_DRAINED, &pair), "send queue drained");
  EXPECT_EQ(reports.failure(&pair), "");
  EXPECT_EQ(reports.pairs(), std::vector<ibv_qp*>{&pair});
}

}  // namespace
}  // namespace tutti
