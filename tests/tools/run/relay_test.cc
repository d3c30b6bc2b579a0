// Tests of LineRelay and Sink, which forward the output of the ranks. Each line gets the prefix of its rank, and
// lines of different ranks are never mixed.
#include "tools/run/relay.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <string>

namespace tutti::tool {
namespace {

// A Sink that writes to a pipe. The test reads the other end of the pipe without blocking.
class Relay : public testing::Test {
 protected:
  void SetUp() override {
    ::signal(SIGPIPE, SIG_IGN);
    ASSERT_EQ(::pipe2(ends_, O_CLOEXEC), 0);
    ::fcntl(ends_[0], F_SETFL, O_NONBLOCK);
  }
  void TearDown() override {
    close_reader();
    ::close(ends_[1]);
  }
  void close_reader() {
    if (ends_[0] >= 0) ::close(ends_[0]);
    ends_[0] = -1;
  }
  std::string drain(Sink& sink) {
    std::string text;
    char buffer[4096];
    do {
      sink.flush();
      for (ssize_t bytes; (bytes = ::read(ends_[0], buffer, sizeof buffer)) > 0;) {
        text.append(buffer, static_cast<std::size_t>(bytes));
      }
    } while (sink.pending());
    return text;
  }
  int ends_[2] = {-1, -1};
};

TEST_F(Relay, EachLineGetsThePrefixHoweverItArrives) {
  Sink sink(ends_[1]);
  LineRelay relay("[3] ", sink);
  for (const char* part : {"on", "e\ntw", "o\n\nfour\nla"}) relay.feed(part);
  EXPECT_EQ(drain(sink), "[3] one\n[3] two\n[3] \n[3] four\n");
  relay.finish();
  EXPECT_EQ(drain(sink), "[3] la\n");
}

TEST_F(Relay, LinesOfTwoRanksAreNeverCutIntoEachOther) {
  Sink sink(ends_[1]);
  LineRelay first("[0] ", sink);
  LineRelay second("[1] ", sink);
  first.feed("aa");
  second.feed("bb");
  first.feed("aa\n");
  second.feed("bb\n");
  EXPECT_EQ(drain(sink), "[0] aaaa\n[1] bbbb\n");
}

TEST_F(Relay, WithoutPrefixBytesAreUnchanged) {
  Sink sink(ends_[1]);
  LineRelay relay("", sink);
  const std::string bytes("a\0b\n\xff\n\nend", 10);
  relay.feed(bytes);
  relay.feed(std::string(200'000, 'x'));
  relay.finish();
  EXPECT_EQ(drain(sink), bytes + std::string(200'000, 'x'));
}

TEST_F(Relay, LinesOverTheLimitAreSplit) {
  Sink sink(ends_[1]);
  LineRelay relay("[0] ", sink);
  relay.feed(std::string(kMaxLineBytes + 10, 'x') + "\n");
  EXPECT_EQ(drain(sink), "[0] " + std::string(kMaxLineBytes, 'x') + "\n[0] " + std::string(10, 'x') + "\n");
}

// If the reader is slow, the launcher must stop reading from the ranks when the sink is full, and must not block.
TEST_F(Relay, ASlowReaderFillsTheSinkAndNeverBlocksIt) {
  Sink sink(ends_[1]);
  LineRelay relay("", sink);
  const std::string line = std::string(999, 'y') + "\n";
  std::size_t fed = 0;
  while (!sink.full()) {
    relay.feed(line);
    fed += line.size();
    sink.flush();  // must return although the pipe is full after 64 KiB
  }
  EXPECT_GE(fed, kMaxPendingBytes);
  EXPECT_EQ(drain(sink).size(), fed);
  EXPECT_FALSE(sink.full());
}

TEST_F(Relay, AClosedReaderIsAnErrorAndNotASignal) {
  Sink sink(ends_[1]);
  close_reader();
  sink.append("lost\n");
  sink.flush();
  EXPECT_EQ(sink.failure(), EPIPE);
  EXPECT_FALSE(sink.pending());
  sink.append("dropped\n");
  EXPECT_FALSE(sink.pending());
}

}  // namespace
}  // namespace tutti::tool
