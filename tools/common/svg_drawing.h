// SvgDrawing: an SVG image that is built from shapes and text, for the drawings of plans, machines and simulated calls.
// All coordinates and lengths are in pixels; y grows downwards. An object must not be used by two threads at a time.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tutti::tool {

struct SvgFont {
  double size = 12;
  std::string_view colour = "#1f2a30";
  bool bold = false;
  std::string_view anchor = "middle";  // the part of the text that is at x: "start", "middle" or "end"
};

struct SvgStroke {
  std::string_view colour;
  double width = 1;
  double opacity = 1;
  std::string_view dashes = "";  // lengths of dashes and gaps, as in SVG's stroke-dasharray; empty: a solid line
};

struct SvgBox {
  std::string_view fill;
  std::string_view line = "";  // colour of the outline; empty: no outline
  double line_width = 1;
  double radius = 0;            // radius of the rounded corners; 0: sharp corners
  std::string_view title = "";  // text that viewers show while the mouse is over the box
};

class SvgDrawing {
 public:
  void line(double x1, double y1, double x2, double y2, const SvgStroke& stroke);
  void path(std::string_view path_data, const SvgStroke& stroke);
  // Draws a filled area without an outline. `path_data` is the attribute d of an SVG path, as in path().
  void area(std::string_view path_data, std::string_view fill);
  void box(double x, double y, double width, double height, const SvgBox& box);
  void circle(double x, double y, double radius, std::string_view fill);
  // `y` is the coordinate of the baseline. Empty text is not drawn.
  void text(double x, double y, std::string_view words, const SvgFont& font);

  // The whole image, with a white background.
  std::string document(double width, double height) const;

 private:
  std::string body_;
};

// Escapes text for use in an XML element: the characters & < > and " are replaced, and control characters (below
// U+0020) become spaces.
std::string escaped(std::string_view text);

// The number of characters of a UTF-8 text.
std::size_t letter_count(std::string_view text);

// Returns the text, shortened to at most `letters` characters (2 if `letters` is less). If the text is shortened, it
// ends with two dots.
std::string shorten(const std::string& text, std::size_t letters);

}  // namespace tutti::tool
