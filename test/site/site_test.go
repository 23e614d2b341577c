// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"
)

// TestSite writes the site of this repository, and follows every link as a browser does.
func TestSite(t *testing.T) {
	dir := t.TempDir()
	n, err := Write(os.DirFS("../.."), dir)
	if err != nil {
		t.Fatal(err)
	}
	written := 0
	err = filepath.WalkDir(dir, func(name string, _ fs.DirEntry, err error) error {
		if err == nil && filepath.Ext(name) == ".html" {
			written++
			checkPage(t, name)
		}
		return err
	})
	if err != nil || written != n {
		t.Errorf("%d pages of %d: %v", written, n, err)
	}
	for _, name := range []string{"index.html", "docs/index.html", "docs/adr/index.html", "docs/plugins/bridge.html", "docs/plugins/index.html", "CHANGELOG.html", "docs/bench/growth.svg"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
}

var attribute = regexp.MustCompile(` (href|src|id)="([^"]*)"`)

// checkPage follows the links of a written page.
func checkPage(t *testing.T, name string) {
	t.Helper()
	for _, m := range attribute.FindAllStringSubmatch(load(t, name), -1) {
		to, err := url.Parse(strings.ReplaceAll(m[2], "&amp;", "&"))
		switch {
		case err != nil:
			t.Errorf("%s: %v", name, err)
		case m[1] == "id":
		case to.Scheme != "" && m[1] == "src":
			t.Errorf("%s loads %s from another host", name, to)
		case to.Scheme == "":
			target := name
			if to.Path != "" {
				target = filepath.Join(filepath.Dir(name), filepath.FromSlash(to.Path))
			}
			if text := load(t, target); to.Fragment != "" && !strings.Contains(text, ` id="`+to.Fragment+`"`) {
				t.Errorf("%s: %s has no %s", name, target, to.Fragment)
			}
		}
	}
}

func load(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestDeadLinks: each link that leads nowhere is named, and nothing is written.
func TestDeadLinks(t *testing.T) {
	repo := fstest.MapFS{
		"README.md":      {Data: []byte("# It\n[index](docs) [no page](docs/no.md) [no heading](docs/a.md#no) [file](LICENSE)\n")},
		"LICENSE":        {},
		"docs/README.md": {Data: []byte("# Pages\n\n| to do | |\n| --- | --- |\n| [A](a.md) | it |\n")},
		"docs/a.md":      {Data: []byte("# A\n## So `--x`\n[here](#so---x) [there](" + forge + "README.md#it) ![picture](no.svg)\n")},
	}
	dir := t.TempDir()
	_, err := Write(repo, dir)
	for _, want := range []string{"README.md: link to docs/no.md: ", "README.md: link to docs/a.md#no: docs/a.md has no heading #no", "docs/a.md: link to no.svg: "} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %q", err, want)
		}
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 || strings.Count(err.Error(), "\n") != 2 {
		t.Errorf("wrote %v, and said %v", left, err)
	}

	delete(repo, "README.md")
	repo["docs/a.md"].Data = []byte("# A\n[forge](../LICENSE) [index](.) <b>bold</b>\n")
	if _, err := Write(repo, dir); err != nil {
		t.Fatal(err)
	}
	text := load(t, filepath.Join(dir, "docs/a.html"))
	for _, want := range []string{
		`<title>A · Patchbay</title>`, `href="` + forge + `LICENSE"`, `href="../docs/index.html"`, `<a href="../docs/a.html" aria-current="page">A</a>`, `<h2>to do</h2>`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %s:\n%s", want, text)
		}
	}
	if name := address(path.Join("docs", "README.md")); name != "docs/index.html" {
		t.Errorf("address %s", name)
	}
}
