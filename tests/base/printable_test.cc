// Tests printable(), which makes text from outside safe to print on a terminal.
#include "base/printable.h"

#include <gtest/gtest.h>

namespace tutti {
namespace {

TEST(Printable, KeepsTextOfEveryLanguage) {
  for (const char* text : {"", "rank 0", "r\u00e9duction", "\u96c6\u56e3", "\U0001f600 all", "\u00a0"}) {
    EXPECT_EQ(printable(text), text);
  }
}

TEST(Printable, LetsNoControlCharacterThrough) {
  EXPECT_EQ(printable("\x1b[2J"), "?[2J");
  EXPECT_EQ(printable("a\tb\x7f"), "a?b?");
  EXPECT_EQ(printable("\x9b"
                      "2J"),
            "?2J")
      << "the same escape sequence, begun by one byte";
  EXPECT_EQ(printable("\xc2\x9b"
                      "2J"),
            "??2J")
      << "and as UTF-8";
  EXPECT_EQ(printable("\u202egnirts"), "???gnirts") << "a right-to-left mark";
  EXPECT_EQ(printable("\u061cgnirts"), "??gnirts") << "a mark of Arabic text";
  EXPECT_EQ(printable(std::string_view("a\0b", 3)), "a?b");
}

TEST(Printable, LetsNoInvalidUtf8Through) {
  EXPECT_EQ(printable("\xff\xfe"), "??");
  EXPECT_EQ(printable("\xc3"), "?") << "truncated";
  EXPECT_EQ(printable("\xe2\x82"
                      "a"),
            "??a");
  EXPECT_EQ(printable("\xc0\x9b"), "??") << "overlong encoding";
  EXPECT_EQ(printable("\xe0\x82\x9b"), "???");
  EXPECT_EQ(printable("\xed\xa0\x80"), "???") << "a single UTF-16 surrogate";
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), "????") << "beyond the last character";
}

}  // namespace
}  // namespace tutti
