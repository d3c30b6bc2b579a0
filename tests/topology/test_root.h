// TestRoot: a folder that stands for "/" in tests of code that reads the kernel's files.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace tutti {

// A folder with files like those that the kernel provides in /proc and /sys.
class TestRoot {
 public:
  TestRoot() {
    std::string name = (std::filesystem::temp_directory_path() / "tutti-root-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~TestRoot() { std::filesystem::remove_all(path_); }
  TestRoot(const TestRoot&) = delete;
  TestRoot& operator=(const TestRoot&) = delete;

  void write(const std::string& file, const std::string& text) const {
    std::filesystem::create_directories((path_ / file).parent_path());
    std::ofstream(path_ / file) << text;
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace tutti
