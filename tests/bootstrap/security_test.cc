// Tests that only real ranks are admitted. Ranks run as processes. At the same time, clients without the key or with
// another key connect, repeat recorded messages, send garbage, or stay silent. None may be admitted, and the job
// must not be disturbed.
#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "bootstrap/hostile.h"
#include "bootstrap/raw_rank.h"
#include "communicator/process_support.h"
#include "transports/tcp/wire.h"

namespace {

// The first bytes that ranks send on connections for data and status, as an attacker on the network would see them.
// In memory that parent and children share.
struct Sniffed {
  static constexpr std::size_t kMost = 64;
  struct Opening {
    tutti::Preamble preamble;
    std::uint16_t port;
  };
  std::atomic<std::size_t> count;
  std::atomic<int> calls;    // number of calls that rank 0 has made
  std::atomic<bool> last;    // set by the test: rank 2 may begin
  std::atomic<bool> enough;  // set by the test: the ranks shall end
  Opening openings[kMost];
};
Sniffed* sniffed = nullptr;

void sniff(int fd, const void* bytes, std::size_t length) {
  if (sniffed == nullptr || length < sizeof(tutti::Preamble)) return;
  if (std::memcmp(bytes, &tutti::kWireMagic, sizeof(tutti::kWireMagic)) != 0) return;
  const std::size_t place = sniffed->count.fetch_add(1);
  if (place >= Sniffed::kMost) return;
  sockaddr_in peer{};
  socklen_t size = sizeof(peer);
  getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size);
  std::memcpy(&sniffed->openings[place].preamble, bytes, sizeof(tutti::Preamble));
  sniffed->openings[place].port = ntohs(peer.sin_port);
}

}  // namespace

// Interposes the functions of the C library. The ranks of this test are children of this program.
extern "C" ssize_t send(int fd, const void* bytes, size_t length, int flags) {
  static const auto next = reinterpret_cast<decltype(&send)>(dlsym(RTLD_NEXT, "send"));
  sniff(fd, bytes, length);
  return next(fd, bytes, length, flags);
}
extern "C" ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  static const auto next = reinterpret_cast<decltype(&sendmsg)>(dlsym(RTLD_NEXT, "sendmsg"));
  if (message->msg_iovlen > 0) sniff(fd, message->msg_iov[0].iov_base, message->msg_iov[0].iov_len);
  return next(fd, message, flags);
}

namespace tutti::test {
namespace {

using std::chrono::milliseconds;

// A temporary folder for the files of one test.
class TestFolder {
 public:
  TestFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "tutti-security-XXXXXX").string();
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    path_ = name;
  }
  ~TestFolder() { std::filesystem::remove_all(path_); }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;
  std::string path(const std::string& name = "") const { return name.empty() ? path_ : path_ + "/" + name; }
  std::string key(const std::string& name, const std::string& bytes, mode_t mode = 0600) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
    EXPECT_EQ(chmod(path(name).c_str(), mode), 0);
    return path(name);
  }

 private:
  std::string path_;
};

constexpr const char* kSecret = "a secret of thirty-two characters";
constexpr const char* kJob = "security-test";

// Options of a rank over TCP with a key file.
CommunicatorOptions by_key(std::int32_t rank, std::int32_t size, std::uint16_t port, const std::string& key) {
  CommunicatorOptions options = job(rank, size, port);
  options.job_id = kJob;
  options.job_key_file = key;
  options.transport = "tcp";
  return options;
}

JobKey key_of(const std::string& path) { return key_of_file(path, "test").value(); }

// A child writes its error to a file of its own with write_error(), and the parent reads it with read_error().
int write_error(const std::string& file, const Error& error) {
  std::ofstream(file) << to_string(error);
  return 3;
}
std::string read_error(const std::string& file) {
  std::ifstream stream(file);
  return {std::istreambuf_iterator<char>(stream), {}};
}
#define TUTTI_EXPECT_WORDS(text, words) \
  EXPECT_NE(std::string(text).find(words), std::string::npos) << "\"" << (words) << "\" is not in: " << (text)

// The program of a rank. It makes all_reduce calls until the test sets `enough`, and checks every result. The exit
// status is 0 if all were right.
int work(const CommunicatorOptions& options, const std::string& trouble) {
  auto rank = Communicator::create(options);
  if (!rank.ok()) return write_error(trouble, rank.error());
  for (std::int32_t enough = 0; enough == 0;) {
    if (!sum_is_right(**rank, 1000)) return 4;
    const std::int32_t mine = options.rank == 0 && (sniffed == nullptr || sniffed->enough) ? 1 : 0;
    const Status status = (*rank)->all_reduce(&mine, &enough, 1, DataType::kInt32, ReduceOp::kSum);
    if (!status.ok()) return write_error(trouble, status.error());
    if (options.rank == 0 && sniffed != nullptr) ++sniffed->calls;
    std::this_thread::sleep_for(milliseconds(1));
  }
  auto copy = (*rank)->duplicate();  // makes new connections during the attack
  if (!copy.ok()) return write_error(trouble, copy.error());
  for (int call = 0; call < 100; ++call) {
    if (!sum_is_right(**copy, 1000)) return 5;
  }
  return 0;
}

// Splits a byte stream into frames.
std::vector<std::string> frames_of(const std::string& bytes) {
  std::vector<std::string> frames;
  std::size_t at = 0;
  while (at + 4 <= bytes.size()) {
    std::uint32_t length = 0;
    std::memcpy(&length, bytes.data() + at, sizeof(length));
    frames.push_back(bytes.substr(at + 4, length));
    at += 4 + length;
  }
  return frames;
}

// Sends `bytes` to a port, and returns all bytes that are received until the end of the connection.
std::string attack(std::uint16_t port, const std::string& bytes) {
  const int fd = dial(port);
  if (fd < 0) return "";
  send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  std::string answer;
  std::array<char, 4096> some;
  pollfd readable{.fd = fd, .events = POLLIN, .revents = 0};
  while (poll(&readable, 1, static_cast<int>(patience().count())) == 1) {
    const ssize_t got = recv(fd, some.data(), some.size(), 0);
    if (got <= 0) break;
    answer.append(some.data(), static_cast<std::size_t>(got));
  }
  close(fd);
  return answer;
}

// Attacks the server in several ways. It must answer none of them with a welcome.
void attack_server(std::uint16_t port, const Proxy::Seen& seen, const JobKey& key) {
  for (const auto& garbage : {std::string(5000, '\xff'), std::string("GET / HTTP/1.1\r\n\r\n"), std::string(4, '\0')}) {
    attack(port, garbage);
  }
  // A client without the key uses a made-up key.
  RawRank guess(port, 2, 3, kJob, key_for_tests("made up"));
  EXPECT_FALSE(guess.greet()) << "the server's proof must not match a made-up key";
  guess.send_bytes(wire::frame(guess.answer()));
  TUTTI_EXPECT_WORDS(guess.receive_frame(), "another job key");
  EXPECT_EQ(guess.receive_frame(), "");
  // A client sends the server's own proof back.
  RawRank mirror(port, 2, 3, kJob, key);
  EXPECT_TRUE(mirror.greet());
  const wire::Answer reflected{.rank_info = mirror.rank_info, .proof = mirror.challenge.proof};
  mirror.send_bytes(wire::frame(bytes_of(reflected)));
  TUTTI_EXPECT_WORDS(mirror.receive_frame(), "another job key");
  // A client repeats the bytes of a real rank, first all at once, and then message by message.
  const std::string again = attack(port, seen.to_server);
  EXPECT_GE(frames_of(again).size(), 1u);
  for (const std::string& frame : frames_of(again)) EXPECT_FALSE(frame.starts_with('\1')) << "welcome";
  RawConnection replay(port);
  const auto said = frames_of(seen.to_server);
  ASSERT_GE(said.size(), 2u);
  replay.send_bytes(wire::frame(said[0]));
  EXPECT_TRUE(replay.receive_frame().starts_with('\2'));
  replay.send_bytes(wire::frame(said[1]));
  TUTTI_EXPECT_WORDS(replay.receive_frame(), "another job key");
}

// Attacks a port for data: with a recorded preamble, the same with another lane or purpose, with another key, and
// with garbage.
void attack_data(const Sniffed::Opening& seen) {
  const auto bytes = [](const Preamble& preamble) { return std::string(bytes_of(preamble)); };
  const auto refusal = [&](const Preamble& preamble) {
    const std::string answer = attack(seen.port, bytes(preamble) + std::string(200, 'x'));
    FrameHeader frame;
    if (answer.size() < sizeof(frame)) return Refusal::kNone;
    std::memcpy(&frame, answer.data(), sizeof(frame));
    return frame.kind == FrameKind::kRefusal ? static_cast<Refusal>(frame.tag.kind) : Refusal::kNone;
  };
  EXPECT_EQ(refusal(seen.preamble), Refusal::kReplay);
  Preamble changed = seen.preamble;
  changed.lane ^= 7;
  ++changed.serial;
  EXPECT_EQ(refusal(changed), Refusal::kProof);
  changed = seen.preamble;
  changed.kind = TcpLinkKind::kControl;
  EXPECT_EQ(refusal(changed), Refusal::kProof);
  changed.proof = proof_of(changed, Key{1});
  EXPECT_EQ(refusal(changed), Refusal::kProof);
  attack(seen.port, std::string(300, '\0'));
  attack(seen.port, "GET / HTTP/1.1\r\n\r\n");
}

TEST(Security, NoStrangerGetsInAndNoneDisturbsARunningJob) {
  const TestFolder place;
  const std::string key = place.key("key", kSecret);
  sniffed = &shared_object<Sniffed>();
  const std::uint16_t port = free_port();
  std::vector<pid_t> ranks;
  Proxy proxy(port);
  for (const std::int32_t rank : {0, 1, 2}) {
    ranks.push_back(start([=, &place, &proxy] {
      while (rank == 2 && !sniffed->last) std::this_thread::sleep_for(milliseconds(5));
      return work(by_key(rank, 3, rank == 1 ? proxy.port() : port, key), place.path(fmt::format("trouble{}", rank)));
    }));
  }
  proxy.begin();
  ASSERT_TRUE(eventually([&] { return frames_of(proxy.seen(0).to_server).size() >= 2; }));
  {
    const Flood flood(port, 300);
    ASSERT_TRUE(eventually([&] { return flood.opened() >= 600; }));
    attack_server(port, proxy.seen(0), key_of(key));
    sniffed->last = true;  // rank 2 joins during the flood
    ASSERT_TRUE(eventually([] { return sniffed->count >= 4; })) << read_error(place.path("trouble2"));
    EXPECT_EQ(flood.admitted(), 0u);
  }
  {
    std::vector<std::unique_ptr<Flood>> floods;
    for (std::size_t i = 0; i < 4; ++i) floods.push_back(std::make_unique<Flood>(sniffed->openings[i].port, 300));
    const int before = sniffed->calls;
    const std::int64_t since_ms = now_ms();
    for (std::size_t i = 0; i < 4; ++i) attack_data(sniffed->openings[i]);
    EXPECT_TRUE(eventually([&] {  // the job makes progress while each flood replaces its connections
      return sniffed->calls > before + 50 &&
             std::all_of(floods.begin(), floods.end(), [](const auto& flood) { return flood->opened() > 300; });
    })) << sniffed->calls - before
        << " calls";
    const auto calls = static_cast<std::int64_t>(sniffed->calls - before);
    RecordProperty("calls_per_s_under_attack", static_cast<int>(calls * 1000 / (now_ms() - since_ms)));
    sniffed->enough = true;
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(status_of(ranks[i]), 0) << read_error(place.path(fmt::format("trouble{}", i)));
    }
  }
  sniffed = nullptr;
}

// If the keys differ, the errors of both sides state this and the remedy.
TEST(Security, RanksOfAnotherKeyAreRefusedAndBothSidesSayWhy) {
  const TestFolder place;
  const std::string right = place.key("right", kSecret);
  const std::string wrong = place.key("wrong", std::string(32, 'w'));
  const std::uint16_t port = free_port();
  // Rank 0 has a short timeout. Therefore it begins last, when the others are already connecting to it.
  std::atomic<int>& begun = shared_object<std::atomic<int>>();
  const pid_t other = start([&] {
    ++begun;
    auto made = Communicator::create(by_key(1, 3, port, wrong));
    return made.ok() ? 0 : write_error(place.path("other"), made.error());
  });
  const pid_t without = start([&] {
    ++begun;
    auto made = Communicator::create(by_key(2, 3, port, ""));
    return made.ok() ? 0 : write_error(place.path("without"), made.error());
  });
  wait_for(begun, 2);
  const pid_t root = start([&] {
    CommunicatorOptions options = by_key(0, 3, port, right);
    options.setup_timeout = scaled(milliseconds(3000));
    auto made = Communicator::create(options);
    return made.ok() ? 0 : write_error(place.path("root"), made.error());
  });
  EXPECT_EQ(status_of(other), 3);
  EXPECT_EQ(status_of(without), 3);
  EXPECT_EQ(status_of(root), 3);
  TUTTI_EXPECT_WORDS(read_error(place.path("other")),
                     "refuses rank 1: the server has another job key: give all ranks the same");
  TUTTI_EXPECT_WORDS(read_error(place.path("other")), "this rank's key: the key file " + wrong);
  TUTTI_EXPECT_WORDS(read_error(place.path("without")),
                     "rank 2 has no job key, and here is one: give all ranks one key");
  TUTTI_EXPECT_WORDS(read_error(place.path("without")), "TUTTI_JOB_KEY_FILE");
  TUTTI_EXPECT_WORDS(read_error(place.path("root")), "rank 1 has another job key");
  TUTTI_EXPECT_WORDS(read_error(place.path("root")), "rank 2 has no job key, and here is one");
}

// A foreign server listens at the port of rank 0. It must not learn anything with which it could impersonate a rank
// or a server.
TEST(Security, AHubWithoutTheKeyIsRefusedAndToldNothing) {
  const TestFolder place;
  const std::string key = place.key("key", kSecret);
  std::uint16_t port = 0;
  const int listener = listen_anywhere(port);
  const pid_t rank = start([&] {
    auto made = Communicator::create(by_key(1, 2, port, key));
    return made.ok() ? 0 : write_error(place.path("rank"), made.error());
  });
  RawConnection victim(accept(listener, nullptr, nullptr));
  const std::string hello = victim.receive_frame();
  ASSERT_EQ(hello.size(), sizeof(wire::Hello));
  wire::Challenge challenge;
  ASSERT_TRUE(random_bytes(challenge.nonce) && random_bytes(challenge.proof));
  victim.send_bytes(wire::frame('\2' + std::string(bytes_of(challenge))));
  std::array<char, 4> header{};
  ASSERT_EQ(recv(victim.fd(), header.data(), header.size(), MSG_WAITALL), 4);
  EXPECT_EQ(wire::frame_length(header), 0u) << "no proof, no rank_info";
  EXPECT_EQ(victim.receive_frame(), "");
  EXPECT_EQ(status_of(rank), 3);
  TUTTI_EXPECT_WORDS(read_error(place.path("rank")), "the server has another job key");
  close(listener);
}

// Changes one bit at several offsets. The set-up must fail, and no rank may use the changed data.
TEST(Security, WhatIsAlteredOnItsWayEndsTheSetUp) {
  const TestFolder place;
  const std::string key = place.key("key", kSecret);
  struct Bit {
    bool to_server;
    std::size_t place;
    const char* words;
  };
  constexpr std::size_t kHelloBytes = sizeof(wire::Hello);
  constexpr std::size_t kChallengeBytes = 1 + sizeof(wire::Challenge);
  // The bits are in the hello, the answer, the challenge, the welcome, and the rounds after them.
  for (const Bit& bit :
       {Bit{true, 30, ""}, Bit{true, 4 + kHelloBytes + 4 + 5, ""}, Bit{false, 4 + 1 + 3, "another job key"},
        Bit{false, 4 + kChallengeBytes + 4 + 20, "altered on its way"},
        Bit{true, 4 + kHelloBytes + 4 + 56 + 4 + 25, "altered"},
        Bit{false, 4 + kChallengeBytes + 4 + 49 + 4 + 30, "altered on its way"},
        Bit{false, 4 + kChallengeBytes + 4 + 49 + 4 + 60, "altered on its way"}}) {
    const std::uint16_t port = free_port();
    Proxy proxy(port, [bit](bool to_server, std::size_t at, char byte) {
      return static_cast<char>(to_server == bit.to_server && at == bit.place ? byte ^ 1 : byte);
    });
    std::vector<pid_t> ranks;
    for (const std::int32_t rank : {0, 1}) {
      ranks.push_back(start([&, rank] {
        CommunicatorOptions options = by_key(rank, 2, rank == 0 ? port : proxy.port(), key);
        options.setup_timeout = scaled(milliseconds(3000));
        auto made = Communicator::create(options);
        return made.ok() ? 0 : write_error(place.path(fmt::format("altered{}", rank)), made.error());
      }));
    }
    proxy.begin();
    for (const pid_t rank : ranks)
      EXPECT_EQ(status_of(rank), 3) << "to server " << bit.to_server << ", byte " << bit.place;
    TUTTI_EXPECT_WORDS(read_error(place.path("altered0")) + read_error(place.path("altered1")), bit.words);
  }
}

// An attacker that reads the whole set-up must find neither the key nor the job id in it.
TEST(Security, NothingSecretTravels) {
  const TestFolder place;
  const std::string key = place.key("key", kSecret);
  const std::uint16_t port = free_port();
  Proxy proxy(port);
  const pid_t root = start([&] { return work(by_key(0, 2, port, key), place.path("root")); });
  const pid_t other = start([&] { return work(by_key(1, 2, proxy.port(), key), place.path("other")); });
  proxy.begin();
  EXPECT_EQ(status_of(root), 0) << read_error(place.path("root"));
  EXPECT_EQ(status_of(other), 0) << read_error(place.path("other"));
  const Proxy::Seen seen = proxy.seen(0);
  ASSERT_GT(seen.to_server.size(), 200u);
  const JobKey job_key = key_of(key);
  for (const std::string& all : {seen.to_server, seen.to_rank}) {
    EXPECT_EQ(all.find(std::string(kSecret).substr(0, 8)), std::string::npos);
    EXPECT_EQ(all.find(bytes_of(job_key.key).substr(0, 8)), std::string::npos);
    EXPECT_EQ(all.find(kJob), std::string::npos);
  }
}

TEST(JobKey, OfAUniqueIdIsNeitherInItsJobIdNorInItsTag) {
  const std::string secret = "0123456789abcdef";
  const JobKey key = key_of_secret(secret);
  EXPECT_NE(key.key, key_of_secret("0123456789abcdeF").key);
  EXPECT_NE(job_id_of_secret(secret), job_id_of_secret("0123456789abcdeF"));
  EXPECT_EQ(job_id_of_secret(secret).size(), 32u);
  EXPECT_EQ(job_id_of_secret(secret).find("3031"), std::string::npos);
}

TEST(JobKey, FilesThatOthersMayReadOrThatAreShortAreRefused) {
  const TestFolder place;
  const auto error = [](const std::string& path) { return to_string(key_of_file(path, "TUTTI_JOB_KEY_FILE").error()); };
  EXPECT_EQ(key_of_file(place.key("a", kSecret), "x")->key, key_of_file(place.key("b", kSecret, 0400), "x")->key);
  TUTTI_EXPECT_WORDS(error(place.key("open", kSecret, 0640)), "may be read or written by other users: chmod 600");
  TUTTI_EXPECT_WORDS(error(place.key("short", "fifteen letters")), "has 15 bytes: a key has 16 to 4096");
  TUTTI_EXPECT_WORDS(error(place.key("long", std::string(5000, 'x'))), "too many");
  TUTTI_EXPECT_WORDS(error(place.path()), "is not a file");
  TUTTI_EXPECT_WORDS(error(place.path("none")), "(TUTTI_JOB_KEY_FILE): No such file");
  EXPECT_TRUE(key_of_text(std::string(32, 'a')).ok());
  const std::string digits = std::string(31, '7') + "q";
  TUTTI_EXPECT_WORDS(to_string(key_of_text(digits).error()), "no hexadecimal digit");
  EXPECT_EQ(to_string(key_of_text(digits).error()).find("777"), std::string::npos)
      << "the error must not contain the key";
  TUTTI_EXPECT_WORDS(to_string(key_of_text("abcd").error()), "has 4 hexadecimal digits");
}

TEST(JobKey, FoldersOfThisMachinesKeyThatTheEnvironmentNamesComeLast) {
  constexpr uid_t kNobody = 4'000'000;  // has no folder in /run/user
  const std::vector<std::string> everywhere = {std::string(P_tmpdir) + "/tutti-4000000", "/dev/shm/tutti-4000000"};
  EXPECT_EQ(machine_key_folders(kNobody, {}), everywhere);
  std::vector<std::string> all = everywhere;
  all.emplace_back("/scratch/tutti-4000000");
  all.emplace_back("/cache/tutti-4000000");
  EXPECT_EQ(machine_key_folders(kNobody, {{"TMPDIR", "/scratch"}, {"XDG_CACHE_HOME", "/cache"}}), all);
  EXPECT_EQ(machine_key_folders(kNobody, {{"TMPDIR", P_tmpdir}, {"XDG_CACHE_HOME", "not/absolute"}}), everywhere);
}

TEST(JobKey, OfThisMachineIsMadeOnceHoweverManyComeAtTheSameTime) {
  const TestFolder place;
  constexpr int kRounds = 40;  // number of folders; all children start together for each
  constexpr int kChildren = 8;
  struct Shared {
    std::atomic<int> there[kRounds];
    std::array<std::array<Digest, kRounds>, kChildren> seen;
  };
  auto* shared = &shared_object<Shared>();
  std::vector<pid_t> children;
  for (int child = 0; child < kChildren; ++child) {
    children.push_back(start([&, child] {
      for (int round = 0; round < kRounds; ++round) {
        const std::vector<std::string> folders = {place.path("not/there"), place.path(fmt::format("keys{}", round))};
        ++shared->there[round];
        while (shared->there[round] < kChildren) sched_yield();
        auto key = machine_key(folders);
        if (!key || key->kind != wire::KeySource::kMachine) return 1;
        std::ranges::copy(key->key, shared->seen[child][round].begin());
      }
      return 0;
    }));
  }
  for (const pid_t child : children) EXPECT_EQ(status_of(child), 0);
  for (const auto& of_child : shared->seen) EXPECT_EQ(of_child, shared->seen[0]);
  struct stat about {};
  ASSERT_EQ(stat(place.path("keys0/machine.key").c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777, 0600u);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(place.path("keys0")), {}), 1)
      << "the folder must contain only the key";
  // Now the folder is writable for others, and then it contains a file of another program.
  const std::vector<std::string> only = {place.path("keys0")};
  chmod(only[0].c_str(), 0777);
  TUTTI_EXPECT_WORDS(to_string(machine_key(only).error()), "others may write to it");
  TUTTI_EXPECT_WORDS(to_string(machine_key(only).error()), "TUTTI_JOB_KEY_FILE");
  chmod(only[0].c_str(), 0700);
  place.key("keys0/machine.key", "short");
  TUTTI_EXPECT_WORDS(to_string(machine_key(only).error()), "is no key of this machine: remove it");
}

}  // namespace
}  // namespace tutti::test
