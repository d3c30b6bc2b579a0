#include "communicator/job_facts.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "communicator/measurement/first_choices.h"
#include "selection/tuning.h"
#include "topology/host.h"

namespace tutti::detail {
namespace {

// The cores that rank 0 learns if it may use `cpus`, and each other rank sends one of these texts.
std::uint32_t cores_beside(const std::vector<std::string>& others, std::vector<bool> cpus = {true, true}) {
  JobContext job_context;
  job_context.cpus = std::move(cpus);
  const auto ranks = static_cast<std::uint32_t>(others.size() + 1);
  job_context.machines.assign(ranks, 0);
  const Gather gather([&](const std::string& own) -> Gather::Blobs {
    std::vector<std::string> blobs{own};
    for (const std::string& other : others) blobs.push_back("+" + other);  // +: no error, see gather_or_fail()
    return blobs;
  });
  const auto facts = exchange_facts(job_context, ranks, gather);
  EXPECT_TRUE(facts.ok());
  return facts ? facts->cores : 0;
}

std::string process(std::int64_t number, const std::vector<bool>& cpus = {true, true}) {
  return std::to_string(number) + "," + pack_cpus(cpus) + "|";
}

TEST(JobFacts, CountTheCoresOfAllRanks) {
  EXPECT_EQ(cores_beside({process(1)}), 2);
  EXPECT_EQ(cores_beside({process(1, {false, true, true, true})}), 4);
}

TEST(JobFacts, CoresAreUnknownIfRanksAreThreads) {
  EXPECT_EQ(cores_beside({process(getpid())}), 0);
  EXPECT_EQ(cores_beside({process(1), process(1)}), 0);
}

TEST(JobFacts, CoresAreUnknownIfARankDoesNotSendThem) {
  for (const char* text : {"", "|", ",|", ",3|"}) EXPECT_EQ(cores_beside({text}), 0) << text;
}

TEST(JobFacts, CoresAreUnknownInLargeJobsAndOnLargeMachines) {
  std::vector<std::string> others;
  for (std::uint32_t rank = 1; rank < kMostMeasuringRanks; ++rank) others.push_back(process(rank));
  EXPECT_EQ(cores_beside(others), 2);
  others.push_back(process(kMostMeasuringRanks));
  EXPECT_EQ(cores_beside(others), 0);
  EXPECT_EQ(cores_beside({process(1)}, std::vector<bool>(1000, true)), 1000);
  EXPECT_EQ(cores_beside({process(1)}, std::vector<bool>(2000, true)), 0);
}

TEST(JobFacts, AMalformedIdIsRefused) {
  JobContext job_context;
  job_context.job_rank = 1;
  for (const char* text : {"", "1,1|", "1,1|x|", "1,1||", "1,1|5"}) {
    const auto facts = exchange_facts(job_context, 2, Gather([&](const std::string& own) -> Gather::Blobs {
                                        return std::vector<std::string>{std::string("+") + text, own};
                                      }));
    ASSERT_FALSE(facts.ok()) << text;
    EXPECT_EQ(facts.error().code, ErrorCode::kRefused) << text;
  }
}

}  // namespace
}  // namespace tutti::detail
