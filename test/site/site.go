// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// forge has the files that the site has not, such as sources.
const forge = "https://github.com/patchbay-net/patchbay/blob/main/"

var (
	//go:embed page.html
	pageHTML string
	//go:embed style.css
	style []byte
)

// site is the pages of a repository by their paths, such as docs/gc.md.
type site struct {
	repo  fs.FS
	pages map[string]*page
	files map[string]bool // other files that pages show, such as pictures
}

// Write renders all pages of the repository into dir, and returns their number. A link that leads nowhere is an error,
// and nothing is written then.
func Write(repo fs.FS, dir string) (int, error) {
	s := &site{repo: repo, pages: make(map[string]*page), files: make(map[string]bool)}
	if err := s.read(); err != nil {
		return 0, err
	}
	if err := s.link(); err != nil {
		return 0, err
	}
	nav, err := s.navigation()
	if err != nil {
		return 0, err
	}
	out := map[string][]byte{"style.css": style}
	layout, err := template.New("page").Parse(pageHTML)
	if err != nil {
		return 0, err
	}
	for name, p := range s.pages {
		if out[address(name)], err = p.html(layout, nav); err != nil {
			return 0, fmt.Errorf("render %s: %w", name, err)
		}
	}
	for name := range s.files {
		if out[name], err = fs.ReadFile(repo, name); err != nil {
			return 0, err
		}
	}
	return len(s.pages), save(dir, out)
}

// read parses the pages: those of the top directory and of docs. A directory of docs without a README gets a list.
func (s *site) read() error {
	top, err := fs.Glob(s.repo, "*.md")
	if err != nil {
		return err
	}
	dirs := make(map[string][]string)
	err = fs.WalkDir(s.repo, "docs", func(name string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() && path.Ext(name) == ".md" {
			dirs[path.Dir(name)] = append(dirs[path.Dir(name)], name)
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, name := range slices.Concat(append(slices.Collect(maps.Values(dirs)), top)...) {
		text, err := fs.ReadFile(s.repo, name)
		if err != nil {
			return err
		}
		s.pages[name] = parse(name, text)
	}
	for dir, names := range dirs {
		if readme := path.Join(dir, "README.md"); s.pages[readme] == nil {
			s.pages[readme] = parse(readme, s.list(dir, names))
		}
	}
	return nil
}

// list is a page for a directory that has none.
func (s *site) list(dir string, names []string) []byte {
	text := fmt.Sprintf("# %s\n\n", strings.ToUpper(path.Base(dir)[:1])+path.Base(dir)[1:])
	for _, name := range names {
		text += fmt.Sprintf("- [%s](%s)\n", s.pages[name].title, path.Base(name))
	}
	return []byte(text)
}

// link changes the links of all pages to those of the site.
func (s *site) link() error {
	var dead []error
	for _, name := range slices.Sorted(maps.Keys(s.pages)) {
		for _, to := range s.pages[name].links() {
			address, err := s.resolve(name, string(*to))
			if err != nil {
				dead = append(dead, fmt.Errorf("%s: link to %s: %w", name, *to, err))
			}
			*to = []byte(address)
		}
	}
	return errors.Join(dead...)
}

// resolve returns the address of a link of a page: of another page, of a file that the site gets, or of one on the forge.
func (s *site) resolve(from, link string) (string, error) {
	name, anchor, _ := strings.Cut(link, "#")
	rest, ours := strings.CutPrefix(name, forge)
	switch {
	case ours:
		name = rest
	case strings.Contains(name, ":"):
		return link, nil // of others: needs a network
	case name == "":
		name = from
	default:
		name = path.Join(path.Dir(from), name)
	}
	if s.pages[path.Join(name, "README.md")] != nil {
		name = path.Join(name, "README.md")
	}
	if p := s.pages[name]; p != nil {
		if anchor != "" && !p.anchors[anchor] {
			return "", fmt.Errorf("%s has no heading #%s", name, anchor)
		}
		return relative(from, address(name)) + fragment(anchor), nil
	}
	if _, err := fs.Stat(s.repo, name); err != nil {
		return "", err
	}
	if path.Ext(name) == ".svg" {
		s.files[name] = true
		return relative(from, name), nil
	}
	return forge + name + fragment(anchor), nil
}

func fragment(anchor string) string {
	if anchor == "" {
		return ""
	}
	return "#" + anchor
}

// address is the file of a page in the site.
func address(name string) string {
	if path.Base(name) == "README.md" {
		return path.Join(path.Dir(name), "index.html")
	}
	return strings.TrimSuffix(name, ".md") + ".html"
}

// relative is the way from a page to a file of the site.
func relative(from, to string) string {
	return strings.Repeat("../", strings.Count(from, "/")) + to
}

func save(dir string, files map[string][]byte) error {
	for name, text := range files {
		name = filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if old, err := os.ReadFile(name); err == nil && bytes.Equal(old, text) {
			continue
		}
		if err := os.WriteFile(name, text, 0o644); err != nil {
			return err
		}
	}
	return nil
}
