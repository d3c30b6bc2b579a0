// Tests a job key that is configured in addition to a unique id. A process that has read the id in a store but does
// not have the key cannot join. If no key is configured, rank 0 warns that the id is the only secret.
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "bootstrap/raw_rank.h"
#include "bootstrap/unique_id_parts.h"
#include "communicator/process_support.h"

namespace tutti::test {
namespace {

using testing::HasSubstr;

constexpr int kRanks = 2;

class IdAndKey : public testing::Test {
 protected:
  // Memory that all processes of a test share.
  struct Board {
    std::atomic<int> ids_there;
    UniqueId ids[2];
    char words[kRanks][1024];  // error message of each rank; empty if it succeeded
  };

  IdAndKey() {
    std::string name = (std::filesystem::temp_directory_path() / "tutti-id-key-XXXXXX").string();
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    board_ = &shared_object<Board>();
  }
  ~IdAndKey() override {
    if (maker_ > 0) {
      kill(maker_, SIGKILL);
      status_of(maker_);
    }
    std::filesystem::remove_all(folder_);
  }

  std::string key_file(const std::string& name) const {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path) << "thirty-two characters of the key " << name;
    EXPECT_EQ(chmod(path.c_str(), 0600), 0);
    return path;
  }

  // Starts a process that makes two ids and serves them until the test ends. `key` is the key file in its
  // environment; empty: none.
  void make_ids(const std::string& key) {
    maker_ = start([&] {
      if (!key.empty()) setenv("TUTTI_JOB_KEY_FILE", key.c_str(), 1);
      for (UniqueId& id : board_->ids) id = UniqueId::create({.interface = "lo"}).value();
      board_->ids_there = 1;
      pause();
      return 0;
    });
    ASSERT_TRUE(eventually([&] { return board_->ids_there != 0; }));
  }

  CommunicatorOptions by_id(std::int32_t rank, int turn = 0) const {
    CommunicatorOptions options = job(rank, kRanks, 1);
    options.root.clear();
    options.unique_id = board_->ids[turn];
    options.transport = "tcp";
    return options;
  }

  // Returns the exit status of a rank: 0, 3 with an error message on the board, or 4 for a wrong sum.
  int create(const CommunicatorOptions& options) const {
    auto made = Communicator::create(options);
    if (made.ok()) return sum_is_right(**made, 1000) ? 0 : 4;
    strncpy(board_->words[options.rank], to_string(made.error()).c_str(), sizeof(board_->words[0]) - 1);
    return 3;
  }

  std::string folder_;
  Board* board_ = nullptr;
  pid_t maker_ = -1;
};

TEST_F(IdAndKey, RanksThatHaveBothMeet) {
  const std::string key = key_file("key");
  make_ids(key);
  const pid_t by_variable = start([&] {
    setenv("TUTTI_JOB_KEY_FILE", key.c_str(), 1);
    return create(by_id(0));
  });
  const pid_t by_option = start([&] {
    CommunicatorOptions options = by_id(1);
    options.job_key_file = key;
    return create(options);
  });
  EXPECT_EQ(status_of(by_variable), 0) << board_->words[0];
  EXPECT_EQ(status_of(by_option), 0) << board_->words[1];
}

TEST_F(IdAndKey, WhoHasReadTheIdAloneIsNotLetIn) {
  const std::string key = key_file("key");
  make_ids(key);
  const UniqueIdParts parts = unpack_unique_id(board_->ids[0]).value();
  RawRank plain(parts.port, 0, kRanks, parts.job_id, parts.key);
  EXPECT_FALSE(plain.greet());
  EXPECT_THAT(plain.last_message, HasSubstr("rank 0 has no job key, and here is one"));
  JobKey pretended = parts.key;
  pretended.kind = wire::KeySource::kUniqueIdAndKey;
  RawRank liar(parts.port, 0, kRanks, parts.job_id, pretended);
  EXPECT_FALSE(liar.greet()) << "the server has another key";
  liar.send_bytes(wire::frame(liar.answer()));
  EXPECT_THAT(liar.receive_frame(), HasSubstr("rank 0 has another job key"));
  // The refused attempts did not use up the id, so the real ranks can still join.
  std::vector<pid_t> ranks;
  for (std::int32_t rank = 0; rank < kRanks; ++rank) {
    ranks.push_back(start([&, rank] {
      setenv("TUTTI_JOB_KEY_FILE", key.c_str(), 1);
      return create(by_id(rank));
    }));
  }
  for (const pid_t rank : ranks) EXPECT_EQ(status_of(rank), 0) << board_->words[0] << " / " << board_->words[1];
}

// An attacker that can write to the store may replace the id. A rank that has a key refuses to join the job of that
// id, because its server cannot prove that it has the key.
TEST_F(IdAndKey, ARankWithAKeyMeetsNobodyThatHasNone) {
  make_ids("");
  const std::string key = key_file("key");
  const pid_t rank = start([&] {
    CommunicatorOptions options = by_id(1);
    options.job_key_file = key;
    return create(options);
  });
  EXPECT_EQ(status_of(rank), 3);
  EXPECT_THAT(std::string(board_->words[1]), HasSubstr("rank 1 has a job key, and here is none"));
}

TEST_F(IdAndKey, AKeyThatCannotBeReadIsAnError) {
  const auto made = UniqueId::create({.interface = "lo", .job_key_file = folder_ + "/none"});
  ASSERT_FALSE(made.ok());
  EXPECT_THAT(to_string(made.error()), HasSubstr("(UniqueIdOptions::job_key_file): No such file"));
}

class IdAlone : public IdAndKey {
 protected:
  // Returns the text that rank 0 writes to stderr while it makes two encrypted communicators with a rank that runs
  // on the machine `other_machine`.
  std::string warnings(const std::string& key, const char* other_machine) {
    make_ids(key);
    const std::string log = folder_ + "/log";
    std::vector<pid_t> ranks;
    for (std::int32_t rank = 0; rank < kRanks; ++rank) {
      ranks.push_back(start([&, rank] {
        if (!key.empty()) setenv("TUTTI_JOB_KEY_FILE", key.c_str(), 1);
        if (rank == 0) dup2(open(log.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600), STDERR_FILENO);
        for (int turn = 0; turn < 2; ++turn) {
          CommunicatorOptions options = by_id(rank, turn);
          options.encrypt = true;
          options.node_id = rank == 0 ? "machine" : other_machine;
          if (const int status = create(options); status != 0) return status;
        }
        return 0;
      }));
    }
    for (const pid_t rank : ranks) EXPECT_EQ(status_of(rank), 0) << board_->words[0] << " / " << board_->words[1];
    std::ifstream stream(log);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
};

constexpr const char* kWarning = "its only secret is in the unique id";

TEST_F(IdAlone, IsWarnedOfOnceIfRanksOfSeveralMachinesEncrypt) {
  const std::string text = warnings("", "another machine");
  EXPECT_THAT(text, HasSubstr(kWarning));
  EXPECT_THAT(text, HasSubstr("TUTTI_JOB_KEY_FILE"));
  EXPECT_EQ(text.find(kWarning, text.find(kWarning) + 1), std::string::npos) << text;
}

TEST_F(IdAlone, IsNotWarnedOfIfAKeyIsConfigured) { EXPECT_EQ(warnings(key_file("key"), "another machine"), ""); }

TEST_F(IdAlone, IsNotWarnedOfOnOneMachine) { EXPECT_EQ(warnings("", "machine"), ""); }

}  // namespace
}  // namespace tutti::test
