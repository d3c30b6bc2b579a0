// SvgText: builds the SVG text of a drawing from a few shapes. All coordinates and lengths are in pixels. Not
// thread-safe.
#pragma once

#include <string>
#include <string_view>

namespace tutti::tool {

struct SvgFont {
  double size = 12;
  std::string_view colour = "#1f2a30";
  bool bold = false;
  std::string_view anchor = "middle";  // or "start", "end"
};

class SvgText {
 public:
  void line(double x1, double y1, double x2, double y2, std::string_view colour, double width,
            std::string_view dashes = "");
  void arrow(double x1, double y1, double x2, double y2, std::string_view colour);  // must point from left to right
  void path(const std::string& path_data, std::string_view colour, double width, double opacity = 1);
  void box(double x, double y, double width, double height, std::string_view fill, std::string_view line);
  // a filled circle with text
  void chip(double x, double y, double radius, const std::string& words, std::string_view colour);
  void text(double x, double y, std::string_view words, const SvgFont& font);

  const std::string& body() const { return body_; }

 private:
  std::string body_;
};

// Escapes text for use in an XML element: the special characters of XML are replaced, and control characters become
// spaces.
std::string escaped(std::string_view text);

// The text, shortened to at most `letters` bytes. If something is left out, the last two are dots.
std::string shorten(const std::string& text, std::size_t letters);

std::string svg_document(double width, double height, const std::string& body);

}  // namespace tutti::tool
