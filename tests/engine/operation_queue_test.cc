// Tests of the order and the numbers of operations in OperationQueue.
#include "engine/operation_queue.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "transports/sim/sim_environment.h"

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

TEST(OperationQueue, VariableCallsOfExchangesAreNumbered) {
  OperationQueue queue(3);
  const auto with_kinds = [](const std::vector<CollectiveKind>& kinds) {
    auto operation = std::make_shared<Operation>();
    for (const CollectiveKind kind : kinds) {
      operation->transfers.push_back({.direction = Direction::kSend, .peer = 1, .tag = {}});
      operation->transfers.back().tag.kind = static_cast<std::uint8_t>(kind);
    }
    return operation;
  };
  const auto first = with_kinds({CollectiveKind::kAllToAll, CollectiveKind::kAllToAll});
  const auto plain = with_kinds({CollectiveKind::kSendReceive});
  const auto second = with_kinds({CollectiveKind::kSendReceive, CollectiveKind::kGather});
  const auto on_device = with_kinds({CollectiveKind::kAllToAll});
  on_device->is_part_of_device_call = true;
  for (const auto& operation : {first, on_device, plain, second}) queue.add(operation);
  EXPECT_EQ(on_device->variable_call, 0u) << "not all ranks may have this part";
  EXPECT_EQ(first->variable_call, 1u);
  EXPECT_EQ(plain->variable_call, 0u);
  EXPECT_EQ(second->variable_call, 2u);
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

// Two transfers of one pair time out in the order of their calls. Both numbers must be used again, because the peer
// waits for the first one.
TEST(OperationQueue, NumbersOfTransfersThatFailInTheirOrderAreUsedAgain) {
  for (const Direction direction : {Direction::kSend, Direction::kReceive}) {
    OperationQueue queue(2);
    const auto first = exchange(direction, 1), second = exchange(direction, 1);
    for (const auto& operation : {first, second}) queue.add(operation);
    for (const auto& operation : {first, second}) {
      queue.give_back_numbers(*operation);
      queue.remove(*operation);
    }
    const auto next = exchange(direction, 1);
    queue.add(next);
    EXPECT_EQ(number_of(next), 1u);
  }
}

TEST(OperationQueue, TransfersBehindOneThatFailedTakeTheNumbersBeforeTheirs) {
  OperationQueue queue(3);
  const auto before = exchange(Direction::kSend, 1), failed = exchange(Direction::kSend, 1);
  const auto behind = exchange(Direction::kSend, 1), last = exchange(Direction::kSend, 1);
  const auto elsewhere = exchange(Direction::kSend, 2), opposite = exchange(Direction::kReceive, 1);
  for (const auto& operation : {before, failed, behind, last, elsewhere, opposite}) queue.add(operation);
  queue.give_back_numbers(*failed);
  queue.remove(*failed);
  EXPECT_EQ(number_of(before), 1u);
  EXPECT_EQ(number_of(behind), 2u);
  EXPECT_EQ(number_of(last), 3u);
  EXPECT_EQ(number_of(elsewhere), 1u);
  EXPECT_EQ(number_of(opposite), 1u);
  const auto next = exchange(Direction::kSend, 1);
  queue.add(next);
  EXPECT_EQ(number_of(next), 4u);
}

// Like the test above, but the exchanges have started. The exchange behind the failed one must also get its turn
// under its new number, and a probe must still look for the first message that no receive will take.
TEST(OperationQueue, StartedTransfersBehindOneThatFailedTakeTheNumbersBeforeTheirs) {
  SimEnvironment sim({.ranks = 2});
  const auto transport = sim.transport(0);
  const auto connection = transport->open_receive(1, kPointToPointLane).value();
  OperationQueue queue(2);
  const auto failed = exchange(Direction::kReceive, 1), behind = exchange(Direction::kReceive, 1);
  const auto probe = exchange(Direction::kReceive, 1, true);
  for (const auto& operation : {failed, behind, probe}) {
    queue.add(operation);
    operation->transfers[0].receive = connection.get();
    operation->exchange =
        std::make_unique<Exchange>(std::move(operation->transfers), operation->own, *transport, queue.numbers(),
                                   operation->probes ? Exchange::Purpose::kProbe : Exchange::Purpose::kTransfer);
    operation->transfers.clear();
    operation->started = true;
  }
  const auto started_number = [](const auto& operation) { return operation->exchange->transfers()[0].tag.sequence; };
  failed->exchange->give_up();
  queue.give_back_numbers(*failed);
  queue.remove(*failed);
  EXPECT_EQ(started_number(behind), 1u);
  EXPECT_TRUE(queue.numbers().turn(1, Direction::kReceive, 1));
  static_cast<void>(active_of(queue));
  EXPECT_EQ(started_number(probe), 2u);
  behind->exchange->give_up();
  queue.give_back_numbers(*behind);
  queue.remove(*behind);
  static_cast<void>(active_of(queue));
  EXPECT_EQ(started_number(probe), 1u);
  EXPECT_TRUE(queue.numbers().turn(1, Direction::kReceive, 1));
  probe->exchange->give_up();
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
