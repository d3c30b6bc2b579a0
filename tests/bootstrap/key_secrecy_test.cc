// Tests job keys in files and the keys of machines. No log and no recording may contain a key, a file of another
// user is refused, and ranks on two machines without a job key get an error that explains how to configure one.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "base/crypto/hmac.h"
#include "bootstrap/raw_rank.h"
#include "bootstrap/rendezvous_server.h"
#include "communicator/process_support.h"

namespace tutti::test {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr const char* kKeyText = "0123456789 a key that nobody may see 0123456789";

class KeySecrecy : public testing::Test {
 protected:
  KeySecrecy() {
    std::string name = (std::filesystem::temp_directory_path() / "tutti-key-secrecy-XXXXXX").string();
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    std::ofstream(key_file()) << kKeyText;
    EXPECT_EQ(chmod(key_file().c_str(), 0600), 0);
  }
  ~KeySecrecy() override { std::filesystem::remove_all(folder_); }

  std::string key_file() const { return folder_ + "/key"; }
  std::string log_of(std::int32_t rank) const { return folder_ + "/log" + std::to_string(rank); }
  std::string recordings() const { return folder_ + "/recordings"; }

  std::string folder_;
};

std::string content_of(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

std::string hexadecimal(std::string_view bytes) {
  std::string digits;
  for (const char byte : bytes) digits += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return digits;
}

TEST_F(KeySecrecy, NoLogAndNoRecordingShowsTheKey) {
  const std::uint16_t port = free_port();
  std::vector<pid_t> ranks;
  for (std::int32_t rank = 0; rank < 2; ++rank) {
    ranks.push_back(start([this, rank, port] {
      setenv("TUTTI_LOG", "debug", 1);
      setenv("TUTTI_RECORD_DIR", recordings().c_str(), 1);
      dup2(open(log_of(rank).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600), STDERR_FILENO);
      CommunicatorOptions options = job(rank, 2, port);
      options.job_key_file = key_file();
      auto made = Communicator::create(options);
      if (!made.ok()) return 3;
      if (!sum_is_right(**made, 1000)) return 4;
      _exit(0);  // without a proper end, so that the recording stays
    }));
  }
  for (const pid_t rank : ranks) EXPECT_EQ(status_of(rank), 0);
  const std::string key(bytes_of(key_of_file(key_file(), "test")->key));
  std::size_t files = 0;
  const auto expect_no_key = [&](const std::filesystem::path& path) {
    const std::string text = content_of(path);
    EXPECT_FALSE(text.empty()) << path;
    for (const std::string& secret : {std::string(kKeyText), key, hexadecimal(kKeyText), hexadecimal(key)}) {
      EXPECT_EQ(text.find(secret.substr(0, 8)), std::string::npos) << path;
    }
    ++files;
  };
  for (const std::int32_t rank : {0, 1}) expect_no_key(log_of(rank));
  for (const auto& entry : std::filesystem::directory_iterator(recordings())) expect_no_key(entry.path());
  EXPECT_GE(files, 4U) << "a log and a recording of each rank";
  EXPECT_THAT(content_of(log_of(0)), HasSubstr("key: the key file " + key_file()))
      << "the log must contain the source of the key";
}

TEST_F(KeySecrecy, AKeyFileOfAnotherUserIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a file to another user";
  ASSERT_EQ(chown(key_file().c_str(), 65534, 65534), 0);
  const auto key = key_of_file(key_file(), "TUTTI_JOB_KEY_FILE");
  ASSERT_FALSE(key.ok());
  EXPECT_THAT(to_string(key.error()), HasSubstr("may be read or written by other users"));
}

// The keys of two machines differ. A rank that has only the key of its machine cannot join a server on another
// machine.
TEST(MachineKeys, OfTwoMachinesDifferAndTheErrorSaysHowToGiveAKey) {
  auto listener = Listener::open("127.0.0.1", std::array<std::uint16_t, 1>{0});
  ASSERT_TRUE(listener.ok());
  const std::uint16_t port = listener->port();
  JobKey here = key_for_tests("the key of this machine");
  here.kind = wire::KeySource::kMachine;
  JobKey there = key_for_tests("the key of another machine");
  there.kind = wire::KeySource::kMachine;
  auto server = RendezvousServer::start(std::move(*listener),
                                        {.job_id = "job", .key = here, .size = 2, .first_wait_ms = patience().count()});
  ASSERT_TRUE(server.ok());
  RawRank rank(port, 1, 2, "job", there);
  EXPECT_FALSE(rank.greet()) << "the server has another key";
  rank.send_bytes(wire::frame(rank.answer()));
  const std::string refusal = rank.receive_frame();
  EXPECT_THAT(refusal, HasSubstr("rank 1 has another machine's key"));
  EXPECT_THAT(refusal, HasSubstr("TUTTI_JOB_KEY_FILE"));
}

}  // namespace
}  // namespace tutti::test
