// Tests of the order and the numbers of operations in OperationQueue.
#include "engine/operation_queue.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace tutti {
namespace {

std::shared_ptr<Operation> collective(BoundPlan& plan) {
  auto operation = std::make_shared<Operation>();
  operation->plan = &plan;
  return operation;
}

std::shared_ptr<Operation> exchange(Direction direction, std::uint32_t peer, bool probes = false) {
  auto operation = std::make_shared<Operation>();
  operation->transfers = {{.direction = direction, .peer = peer, .tag = {}}};
  operation->probes = probes;
  return operation;
}

std::uint64_t number_of(const std::shared_ptr<Operation>& exchange) { return exchange->transfers[0].tag.sequence; }

std::vector<std::shared_ptr<Operation>> active_of(OperationQueue& queue) {
  std::vector<std::shared_ptr<Operation>> active;
  queue.list_active(active);
  return active;
}

TEST(OperationQueue, OneCollectiveAndAllExchangesAreActive) {
  OperationQueue queue(2);
  BoundPlan plan;
  const auto first = collective(plan), second = collective(plan);
  const auto send = exchange(Direction::kSend, 1), receive = exchange(Direction::kReceive, 1);
  for (const auto& operation : {send, first, second, receive}) queue.add(operation);
  EXPECT_EQ(active_of(queue), (std::vector{first, send, receive}));
  EXPECT_EQ(queue.last(), second);
  queue.remove(*first);
  EXPECT_EQ(active_of(queue), (std::vector{second, send, receive}));
  queue.remove(*send);
  queue.remove(*second);
  EXPECT_EQ(active_of(queue), std::vector{receive});
  EXPECT_EQ(queue.first(), receive);
  queue.remove(*receive);
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(queue.first(), nullptr);
}

TEST(OperationQueue, CollectivesAndTheTransfersOfEachPairAreNumbered) {
  OperationQueue queue(3);
  BoundPlan plan;
  const auto first = collective(plan), second = collective(plan);
  queue.add(first);
  queue.add(second);
  EXPECT_EQ(first->call.tag.sequence, 1u);
  EXPECT_EQ(second->call.tag.sequence, 2u);
  const auto to_1 = exchange(Direction::kSend, 1), to_2 = exchange(Direction::kSend, 2);
  const auto again_to_1 = exchange(Direction::kSend, 1), from_1 = exchange(Direction::kReceive, 1);
  for (const auto& operation : {to_1, to_2, again_to_1, from_1}) queue.add(operation);
  EXPECT_EQ(number_of(to_1), 1u);
  EXPECT_EQ(number_of(to_2), 1u);
  EXPECT_EQ(number_of(again_to_1), 2u);
  EXPECT_EQ(number_of(from_1), 1u);
}

TEST(OperationQueue, AShortCallThatIsQueuedRunsBeforeLaterCollectives) {
  OperationQueue queue(2);
  BoundPlan plan;
  const auto short_call = collective(plan), later = collective(plan);
  short_call->call.tag.sequence = queue.take_sequence();
  queue.add(later);
  queue.add_short_call(short_call);
  EXPECT_EQ(active_of(queue), std::vector{short_call});
  EXPECT_EQ(later->call.tag.sequence, 2u);
}

TEST(OperationQueue, NumbersOfTransfersThatNeverStartedAreUsedAgain) {
  OperationQueue queue(2);
  const auto failed = exchange(Direction::kSend, 1);
  queue.add(failed);
  queue.give_back_numbers(*failed);
  queue.remove(*failed);
  const auto next = exchange(Direction::kSend, 1);
  queue.add(next);
  EXPECT_EQ(number_of(next), 1u);
}

TEST(OperationQueue, ProbesComeAfterAllReceivesAndTakeNoNumber) {
  OperationQueue queue(2);
  const auto probe = exchange(Direction::kReceive, 1, true);
  queue.add(probe);
  EXPECT_EQ(number_of(probe), 1u);
  const auto receive = exchange(Direction::kReceive, 1);
  queue.add(receive);
  EXPECT_EQ(number_of(receive), 1u);
  EXPECT_EQ(active_of(queue), (std::vector{receive, probe}));
  EXPECT_EQ(number_of(probe), 2u) << "the message with number 1 belongs to the receive";
}

TEST(OperationQueue, AReceiveThatHasNotStartedClaimsTheMessageOfItsPeer) {
  OperationQueue queue(3);
  queue.add(exchange(Direction::kReceive, 1));
  queue.add(exchange(Direction::kSend, 2));
  std::vector<Transfer> probes = {{.direction = Direction::kReceive, .peer = 1, .tag = {}},
                                  {.direction = Direction::kReceive, .peer = 2, .tag = {}}};
  queue.remove_claimed(probes);
  ASSERT_EQ(probes.size(), 1u);
  EXPECT_EQ(probes[0].peer, 2u);
}

TEST(OperationQueue, TheDriverSeesEachNewOperation) {
  OperationQueue queue(2);
  const std::uint32_t before = queue.changes();
  queue.add(exchange(Direction::kSend, 1));
  EXPECT_NE(queue.changes(), before);
  EXPECT_EQ(queue.capacity(), OperationQueue::kMaxOperations - 1);
}

}  // namespace
}  // namespace tutti
