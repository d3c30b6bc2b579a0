// Tests of the functions for paths, with a folder in the temporary folder.
#include "base/paths.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace tutti {
namespace {

class Paths : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(mkdtemp(path_.data()), nullptr);
    path_ = std::filesystem::canonical(path_);
  }
  void TearDown() override { std::filesystem::remove_all(path_); }
  std::string at(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_ = testing::TempDir() + "tutti-paths-XXXXXX";
};

TEST(PathText, IsJoinedWithOneSlash) {
  EXPECT_EQ(join_path("/a", "b"), "/a/b");
  EXPECT_EQ(join_path("/a/", "b/c"), "/a/b/c");
  EXPECT_EQ(join_path("/", "b"), "/b");
  EXPECT_EQ(join_path("", "b"), "b");
}

TEST(PathText, IsCutAtTheLastSlash) {
  EXPECT_EQ(folder_of("/a/b"), "/a");
  EXPECT_EQ(folder_of("/a/"), "/a");
  EXPECT_EQ(folder_of("/a//b"), "/a");
  EXPECT_EQ(folder_of("//a"), "/");
  EXPECT_EQ(folder_of("/a"), "/");
  EXPECT_EQ(folder_of("/"), "/");
  EXPECT_EQ(folder_of("a/b"), "a");
  EXPECT_EQ(folder_of("a"), "");
  EXPECT_EQ(folder_of(""), "");
}

TEST_F(Paths, HaveATypeThatFollowsLinks) {
  std::ofstream(at("file")) << "text";
  ASSERT_EQ(mkfifo(at("pipe").c_str(), 0600), 0);
  ASSERT_EQ(symlink(at("file").c_str(), at("link").c_str()), 0);
  ASSERT_EQ(symlink(at("nothing").c_str(), at("broken").c_str()), 0);
  for (const char* name : {".", "file", "pipe", "link"}) EXPECT_TRUE(file_exists(at(name))) << name;
  for (const char* name : {"nothing", "broken", "file/x"}) EXPECT_FALSE(file_exists(at(name))) << name;
  EXPECT_EQ(file_type(at(".")), FileType::kFolder);
  EXPECT_EQ(file_type(at("file")), FileType::kRegular);
  EXPECT_EQ(file_type(at("link")), FileType::kRegular);
  EXPECT_EQ(file_type(at("pipe")), FileType::kOther);
  EXPECT_EQ(file_type(at("broken")), FileType::kNone);
}

TEST_F(Paths, AreResolved) {
  ASSERT_EQ(create_folders(at("a/b")), 0);
  ASSERT_EQ(symlink("a/b", at("link").c_str()), 0);
  EXPECT_EQ(resolve_path(at("link/../../a/./b")), at("a/b"));
  EXPECT_EQ(resolve_path(at("nothing")), "");
}

TEST_F(Paths, AreCreatedWithTheFoldersAbove) {
  EXPECT_EQ(create_folders(at("a/b/c/")), 0);
  EXPECT_EQ(file_type(at("a/b/c")), FileType::kFolder);
  EXPECT_EQ(create_folders(at("a/b/c")), 0) << "it exists";
  EXPECT_EQ(create_folders(""), 0) << "the current folder exists";
  std::ofstream(at("file")) << "text";
  EXPECT_EQ(create_folders(at("file")), ENOTDIR);
  EXPECT_EQ(create_folders(at("file/x")), ENOTDIR);
  ASSERT_EQ(symlink(at("nothing").c_str(), at("broken").c_str()), 0);
  EXPECT_EQ(create_folders(at("broken")), EEXIST) << "the link, not the lack of the file that it names";
  EXPECT_EQ(create_folders(at(std::string(300, 'x'))), ENAMETOOLONG);
  EXPECT_EQ(create_folders("/proc/none/x"), ENOENT);
}

TEST_F(Paths, AreListed) {
  for (const char* name : {"c", "a", "b"}) std::ofstream(at(name)) << "text";
  EXPECT_EQ(names_in_folder(at("."), 10), (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(names_in_folder(at("."), 2).size(), 2u);
  EXPECT_TRUE(names_in_folder(at("a"), 10).empty()) << "a file";
  EXPECT_TRUE(names_in_folder(at("nothing"), 10).empty());
}

}  // namespace
}  // namespace tutti
