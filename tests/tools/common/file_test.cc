// Tests of reading and writing files that are pipes, devices or links. The data arrives or an error is returned, and
// no call blocks forever.
#include "tools/common/file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <thread>

namespace tutti::tool {
namespace {

using testing::HasSubstr;

// A named pipe that only this test uses.
class Pipe {
 public:
  Pipe() : path_(testing::TempDir() + "tutti_file_test." + std::to_string(getpid())) {
    ::unlink(path_.c_str());
    EXPECT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  }
  ~Pipe() { ::unlink(path_.c_str()); }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string read_all(int fd) {
  std::string text;
  std::array<char, 4096> part{};
  for (ssize_t got = 0; (got = ::read(fd, part.data(), part.size())) > 0;) {
    text.append(part.data(), static_cast<std::size_t>(got));
  }
  return text;
}

TEST(File, APipeWhoseReaderComesLateGetsAll) {
  const Pipe pipe;
  const std::string text(200'000, 'x');  // more than a pipe holds
  std::string got;
  std::thread reader([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    const int fd = ::open(pipe.path().c_str(), O_RDONLY);
    got = read_all(fd);
    ::close(fd);
  });
  const Status written = write_file(pipe.path(), text);
  EXPECT_TRUE(written.ok()) << written.error().message;
  if (!written.ok()) ::close(::open(pipe.path().c_str(), O_WRONLY | O_NONBLOCK));  // so that the reader ends
  reader.join();
  EXPECT_EQ(got, text);
}

TEST(File, APipeThatNobodyReadsIsRefused) {
  const Pipe pipe;
  const auto start = std::chrono::steady_clock::now();
  const Status written = write_file(pipe.path(), "text");
  ASSERT_FALSE(written.ok());
  EXPECT_THAT(written.error().message, HasSubstr("a pipe that nobody reads: start its reader"));
  EXPECT_GE(std::chrono::steady_clock::now() - start, kPipeWait);
}

TEST(File, APipeIsReadUntilItsWriterIsDone) {
  const Pipe pipe;
  std::thread writer([&] {
    const int fd = ::open(pipe.path().c_str(), O_WRONLY);
    EXPECT_EQ(::write(fd, "one ", 4), 4);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    EXPECT_EQ(::write(fd, "two", 3), 3);
    ::close(fd);
  });
  const auto text = read_file(pipe.path(), 100);
  writer.join();
  ASSERT_TRUE(text.ok()) << text.error().message;
  EXPECT_EQ(*text, "one two");
}

TEST(File, APipeThatNobodyWritesIsRefused) {
  const Pipe pipe;
  const auto text = read_file(pipe.path(), 100);
  ASSERT_FALSE(text.ok());
  EXPECT_THAT(text.error().message, HasSubstr("nothing came for 5 s"));
}

TEST(File, ADeviceIsReadUpToTheBound) {
  const auto text = read_file("/dev/zero", 1000);
  ASSERT_TRUE(text.ok()) << text.error().message;
  EXPECT_EQ(*text, std::string(1000, '\0'));
  const auto folder = read_file(testing::TempDir(), 1000);
  EXPECT_FALSE(folder.ok());
  EXPECT_TRUE(write_file("/dev/null", "text").ok());
  const Status full = write_file("/dev/full", "text");
  ASSERT_FALSE(full.ok());
  EXPECT_THAT(full.error().message, HasSubstr("cannot write /dev/full"));
}

// Runs the command. Returns its exit status, and its standard output and standard error together.
std::pair<int, std::string> run(const std::string& arguments) {
  std::FILE* pipe = popen(("'" TUTTI_TOOL "' " + arguments + " 2>&1").c_str(), "r");
  EXPECT_NE(pipe, nullptr);
  std::string text = read_all(fileno(pipe));
  const int status = pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, text};
}

TEST(TuneOptions, ThoseOfAnotherTaskAreRefused) {
  const std::pair<const char*, const char*> wrong[] = {
      {"--explain all_reduce 8 --regret", "two tasks"},
      {"--explain all_reduce 8 --print", "--print is of measuring"},
      {"--explain all_reduce 8 --sizes 8", "--sizes is of --regret: leave it out"},
      {"--explain all_reduce 8 --rounds 5", "--rounds is of --regret"},
      {"--explain all_reduce 8 --shape dgx-h100 --transports tcp", "leave one of them out"},
      {"--explain all_reduce 8 --transports shm,tcp", "--transports: \"shm,tcp\" is not one of shm, tcp"},
      {"--regret --shape dgx-h100", "--shape is of --explain"},
      {"--regret --ranks 2,4", "--ranks: \"2,4\" is not a number of ranks"},
      {"--regret --ranks 2-4x", "--ranks: \"2-4x\" is not a number of ranks"},
      {"--shape dgx-h100", "give --explain too"},
      {"--ranks 4", "give --explain or --regret too"}};
  for (const auto& [arguments, words] : wrong) {
    const auto [status, text] = run(std::string("tune ") + arguments);
    EXPECT_EQ(status, 2) << arguments;
    EXPECT_THAT(text, HasSubstr(words)) << arguments;
  }
  EXPECT_EQ(run("tune --explain all_reduce 8 --ranks 4 --transports tcp").first, 0);
}

TEST(TopoOptions, AFileThatCannotBeWrittenIsToldAtOnce) {
  const auto [status, text] = run("topo --shape cpu-1socket --svg /no/such/folder/x.svg");
  EXPECT_EQ(status, 1);
  EXPECT_THAT(text, HasSubstr("cannot write /no/such/folder/x.svg"));
  EXPECT_EQ(text.find("Within one machine"), std::string::npos);
}

}  // namespace
}  // namespace tutti::tool
