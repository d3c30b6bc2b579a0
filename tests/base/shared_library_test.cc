#include "base/shared_library.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tutti {
namespace {

TEST(SharedLibrary, FindsTheFunctionsOfALibrary) {
  auto library = SharedLibrary::open("libm.so.6");
  ASSERT_TRUE(library.ok()) << library.error().message;
  double (*floor)(double) = nullptr;
  library->find(floor, "floor");
  ASSERT_NE(floor, nullptr);
  EXPECT_EQ(floor(2.5), 2.0);
  EXPECT_EQ(library->missing(), nullptr);
}

TEST(SharedLibrary, NamesTheFirstFunctionThatIsMissing) {
  auto library = SharedLibrary::open("libm.so.6");
  ASSERT_TRUE(library.ok()) << library.error().message;
  void (*function)() = [] {};
  library->find_optional(function, "tutti_may_be_missing");
  EXPECT_EQ(function, nullptr);
  EXPECT_EQ(library->missing(), nullptr);
  library->find(function, "tutti_is_missing");
  library->find(function, "tutti_is_missing_too");
  EXPECT_EQ(function, nullptr);
  EXPECT_STREQ(library->missing(), "tutti_is_missing");
}

TEST(SharedLibrary, SaysWhyALibraryCannotBeOpened) {
  auto library = SharedLibrary::open("libtutti_is_missing.so.7");
  ASSERT_FALSE(library.ok());
  EXPECT_EQ(library.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(library.error().message, testing::HasSubstr("libtutti_is_missing.so.7: cannot open shared object file"));
  library = SharedLibrary::open("libtutti_is_missing.so.7", RTLD_NOLOAD);
  ASSERT_FALSE(library.ok());
  EXPECT_THAT(library.error().message, testing::HasSubstr("libtutti_is_missing.so.7"));
}

}  // namespace
}  // namespace tutti
