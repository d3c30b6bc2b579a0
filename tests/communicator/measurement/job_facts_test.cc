#include "communicator/job_facts.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "selection/tuning.h"
#include "topology/host.h"

namespace tutti::detail {
namespace {

// The facts that rank 0 learns if rank 1 sends `other`, and rank 0 may use the first two CPUs.
Result<JobFacts> facts_beside(const std::string& other, std::uint32_t ranks = 2) {
  JobContext job_context;
  job_context.cpus = {true, true};
  job_context.machines.assign(ranks, 0);
  const Gather gather([&](const std::string& own) -> Gather::Blobs {
    std::vector<std::string> blobs(ranks, "+" + other);  // +: no error, see gather_or_fail()
    blobs[0] = own;
    return blobs;
  });
  return exchange_facts(job_context, ranks, gather);
}

std::uint32_t cores_beside(const std::string& other, std::uint32_t ranks = 2) {
  const auto facts = facts_beside(other, ranks);
  EXPECT_TRUE(facts.ok());
  return facts ? facts->cores : 0;
}

TEST(JobFacts, CountTheCoresOfAllRanks) {
  EXPECT_EQ(cores_beside("1," + pack_cpus({true, true}) + "|"), 2);
  EXPECT_EQ(cores_beside("1," + pack_cpus({false, true, true, true}) + "|"), 4);
}

TEST(JobFacts, CoresAreUnknownIfRanksAreThreads) {
  EXPECT_EQ(cores_beside(std::to_string(getpid()) + "," + pack_cpus({true, true}) + "|"), 0);
}

TEST(JobFacts, CoresAreUnknownIfARankDoesNotSendThem) {
  for (const char* text : {"", "|", ",|", ",3|"}) EXPECT_EQ(cores_beside(text), 0) << text;
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
