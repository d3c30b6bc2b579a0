// Tests that no secret of a job is in memory that a core dump includes, neither while ranks use it nor afterwards.
//
// Each rank is a process that is forked before the secret exists, so that the test leaves no copy in it. The parent
// passes the searched secret with every bit inverted, and the rank inverts the memory that it reads before it
// compares.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "bootstrap/hostile.h"
#include "bootstrap/unique_id_parts.h"
#include "communicator/process_support.h"
#include "tests/support/threads.h"

namespace tutti::test {
namespace {

constexpr std::size_t kSecretBytes = 16;  // number of bytes of each secret that are searched for
using Inverted = std::array<unsigned char, kSecretBytes>;

// Memory that parent and ranks share.
struct Search {
  std::atomic<int> secrets_there;  // the secrets are set, and the ranks may begin
  std::atomic<int> first_waits;    // rank 0 has searched its memory while it waited for rank 1
  std::size_t count;
  Inverted secrets[4];
};

Inverted inverted(std::string_view secret) {
  Inverted bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<unsigned char>(~secret[i]);
  return bytes;
}

// Returns whether a range of this process's memory contains the secret.
bool contains(int memory, std::uintptr_t begin, std::uintptr_t end, const Inverted& secret) {
  static std::array<unsigned char, 1 << 16> buffer;
  for (std::uintptr_t at = begin; at < end;) {
    const std::size_t wanted = std::min<std::uintptr_t>(buffer.size(), end - at);
    const ssize_t got = pread(memory, buffer.data(), wanted, static_cast<off_t>(at));
    if (got <= 0) return false;  // a mapping without read access
    const auto bytes = static_cast<std::size_t>(got);
    for (std::size_t i = 0; i < bytes; ++i) buffer[i] = static_cast<unsigned char>(~buffer[i]);
    const bool found = memmem(buffer.data(), bytes, secret.data(), secret.size()) != nullptr;
    buffer.fill(0);  // otherwise this buffer would contain the secret itself
    if (found) return true;
    if (at + bytes >= end) return false;
    at += bytes > kSecretBytes ? bytes - kSecretBytes + 1 : bytes;  // a secret may be in two blocks
  }
  return false;
}

// Returns a bit mask of the secrets that are in a mapping that core dumps include.
int dumped_secrets(const Search& search) {
  // in bytes; the shadow memory of a sanitizer is larger and is skipped
  constexpr std::uintptr_t kLargest = std::uintptr_t{1} << 30;
  int found = 0;
  const int memory = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
  std::ifstream maps("/proc/self/smaps");
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  std::string rights;
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t first = 0;
    std::uintptr_t last = 0;
    char dash = 0;
    std::istringstream words(line);
    if ((words >> std::hex >> first >> dash >> last) && dash == '-') {
      begin = first;
      end = last;
      words >> rights;
    } else if (line.starts_with("VmFlags:") && line.find(" dd") == std::string::npos && rights.starts_with("rw") &&
               end - begin <= kLargest) {
      for (std::size_t i = 0; i < search.count; ++i) {
        if (contains(memory, begin, end, search.secrets[i])) found |= 1 << i;
      }
    }
  }
  close(memory);
  return found;
}

// Returns a bit mask of the job's secrets that a core dump would include now. To test the search itself, it also
// looks for a control value that is in memory, and reports bit 6 if that is not found.
int dumped_secrets_of_job(const Search& search) {
  constexpr int kBlind = 1 << 6;
  const std::vector<unsigned char> control(kSecretBytes, 0xd1);
  Search with_control{.secrets_there = 1, .first_waits = 1, .count = search.count + 1, .secrets = {}};
  std::copy_n(search.secrets, search.count, with_control.secrets);
  with_control.secrets[search.count] = inverted(std::string(kSecretBytes, '\xd1'));
  const int found = dumped_secrets(with_control);
  const int control_bit = 1 << search.count;
  return (found & control_bit) != 0 ? found & ~control_bit : kBlind;
}

// The program of a rank. Rank 0 also searches while it waits for rank 1. Returns the exit status: 0, or 16 plus a
// bit for each secret found.
int live_and_look(const CommunicatorOptions& options, Search& search) {
  int found = 0;
  {
    std::thread meanwhile([&search, &found, caller = gettid(), first = options.rank == 0] {
      if (first && falls_asleep(caller)) found |= dumped_secrets_of_job(search);
      if (first) search.first_waits = 1;
    });
    if (options.rank != 0 && !eventually([&] { return search.first_waits.load() != 0; })) return 5;
    auto rank = Communicator::create(options);
    meanwhile.join();
    if (!rank.ok()) return 3;
    found |= dumped_secrets_of_job(search);
    if (!sum_is_right(**rank, 1000)) return 4;
    found |= dumped_secrets_of_job(search);
  }
  found |= dumped_secrets_of_job(search);
  return found == 0 ? 0 : 16 | found;
}

class Secrets : public testing::Test {
 protected:
  Secrets() {
    std::string name = (std::filesystem::temp_directory_path() / "tutti-secrets-XXXXXX").string();
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    search_ = &shared_object<Search>();
  }
  ~Secrets() override { std::filesystem::remove_all(folder_); }

  // Forks two ranks, which wait until the secrets are set.
  void start_ranks(const std::function<CommunicatorOptions(std::int32_t rank)>& options_of) {
    for (std::int32_t rank = 0; rank < 2; ++rank) {
      ranks_.push_back(start([this, rank, options_of] {
        if (!eventually([&] { return search_->secrets_there.load() != 0; })) return 5;
        return live_and_look(options_of(rank), *search_);
      }));
    }
  }
  void look_for(std::string_view secret) { search_->secrets[search_->count++] = inverted(secret); }
  void make_key_file() {
    Key bytes;
    ASSERT_TRUE(random_bytes(bytes));
    const int file = open(key_file().c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    ASSERT_EQ(write(file, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    close(file);
    look_for(bytes_of(bytes));
    look_for(bytes_of(key_of_file(key_file(), "test")->key));
  }
  void expect_nothing_found() {
    search_->secrets_there = 1;
    for (const pid_t rank : ranks_)
      EXPECT_EQ(status_of(rank), 0) << "16 plus a bit for each secret that a core dump would contain";
  }
  std::string key_file() const { return folder_ + "/key"; }

  std::string folder_;
  Search* search_ = nullptr;
  std::vector<pid_t> ranks_;
};

TEST_F(Secrets, OfAKeyFileAreInNoCoreDump) {
  const std::uint16_t port = free_port();
  start_ranks([&](std::int32_t rank) {
    CommunicatorOptions options = job(rank, 2, port);
    options.job_key_file = key_file();
    options.transport = "tcp";
    return options;
  });
  make_key_file();
  expect_nothing_found();
}

// Copies of the id that the program makes are the program's responsibility. These ranks make no other copy than the
// one that they pass to the library.
TEST_F(Secrets, OfAUniqueIdAreInNoCoreDump) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  for (std::int32_t rank = 0; rank < 2; ++rank) {
    ranks_.push_back(start([&, rank] {
      if (!eventually([&] { return search_->secrets_there.load() != 0; })) return 5;
      CommunicatorOptions options = job(rank, 2, 1);
      options.root = "";
      options.transport = "tcp";
      UniqueId& id = options.unique_id.emplace();
      if (read(ends[0], id.bytes.data(), id.bytes.size()) != static_cast<ssize_t>(id.bytes.size())) return 6;
      auto made = Communicator::create(options);
      explicit_bzero(id.bytes.data(), id.bytes.size());
      if (!made.ok()) return 3;
      int found = dumped_secrets_of_job(*search_);
      if (!sum_is_right(**made, 1000)) return 4;
      made->reset();
      found |= dumped_secrets_of_job(*search_);
      return found == 0 ? 0 : 16 | found;
    }));
  }
  const UniqueId id = UniqueId::create({.interface = "lo"}).value();
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_EQ(write(ends[1], id.bytes.data(), id.bytes.size()), static_cast<ssize_t>(id.bytes.size()));
  }
  look_for({reinterpret_cast<const char*>(id.bytes.data()) + 28, kSecretBytes});  // format: unique_id_parts.h
  look_for(bytes_of(unpack_unique_id(id)->key.key));
  expect_nothing_found();
  close(ends[0]);
  close(ends[1]);
}

}  // namespace
}  // namespace tutti::test
