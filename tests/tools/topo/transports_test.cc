// Tests of `tutti topo --transports`: it describes each transport, and gives the reason if the transport was not
// chosen.
#include "tools/topo/transports.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <sstream>
#include <string>

namespace tutti::tool {
namespace {

std::string output_of(const char* transport) {
  setenv("TUTTI_TRANSPORT", transport, 1);
  setenv("TUTTI_RDMA_DEVICES", "none", 1);
  const Result<std::string> text = list_transports(false);
  unsetenv("TUTTI_TRANSPORT");
  unsetenv("TUTTI_RDMA_DEVICES");
  EXPECT_TRUE(text.ok());
  return text.ok() ? *text : std::string();
}

TEST(TopoTransports, EveryWayThatIsNotTakenHasAReason) {
  std::istringstream lines(output_of("tcp"));
  std::string line;
  std::getline(lines, line);  // skips the heading
  std::string whole;
  while (std::getline(lines, line)) {
    whole += line + '\n';
    if (line.starts_with(' ')) continue;
    ASSERT_TRUE(std::getline(lines, line)) << whole;
    EXPECT_TRUE(line.starts_with("       ") && line.size() > 10) << "there is no reason after:\n" << whole << line;
    whole += line + '\n';
  }
  EXPECT_NE(whole.find("verbs  not usable\n"), std::string::npos) << whole;
  EXPECT_NE(whole.find("tcp    chosen\n       needs nothing but an address\n"), std::string::npos) << whole;
  EXPECT_EQ(whole.find("ucx    chosen"), std::string::npos) << whole;
}

TEST(TopoTransports, UcxIsTakenByNameAlone) {
  const std::string text = output_of("auto");
  if (text.find("ucx    usable") == std::string::npos) GTEST_SKIP() << text;
  EXPECT_NE(text.find("not chosen: UCX is used only with TUTTI_TRANSPORT=ucx"), std::string::npos) << text;
  const std::string named = output_of("ucx");
  EXPECT_NE(named.find("ucx    chosen"), std::string::npos) << named;
  EXPECT_NE(named.find("control traffic only"), std::string::npos) << named;
}

TEST(TopoTransports, ATypoIsRefused) {
  setenv("TUTTI_TRANSPORT", "verb", 1);
  EXPECT_FALSE(list_transports(false).ok());
  unsetenv("TUTTI_TRANSPORT");
}

}  // namespace
}  // namespace tutti::tool
