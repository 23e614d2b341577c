// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package patchbay_test

import (
	"fmt"
	"go/ast"
	"go/token"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/anchor"
)

// forge is where users read the pages. Unit files and error texts have such links, too.
const forge = "https://github.com/" + "patchbay-net/patchbay/blob/main/"

var (
	linkInText  = regexp.MustCompile(`\]\(<?([^)\s>]+)>?(?: "[^"]*")?\)`)
	linkToForge = regexp.MustCompile(regexp.QuoteMeta(forge) + `[A-Za-z0-9_./#-]+`)
	block       = regexp.MustCompile("(?ms)^ *```.*?^ *```")
	heading     = regexp.MustCompile(`(?m)^#+ +(.*?) *$`)
)

// TestLinks: each link to a file of this repository leads to a file, and to a heading if it names one.
func TestLinks(t *testing.T) {
	anchors := make(map[string]map[string]bool)
	for _, page := range pages(t) {
		for _, m := range linkInText.FindAllStringSubmatch(prose(t, page), -1) {
			if strings.HasPrefix(m[1], forge) || !strings.Contains(m[1], ":") { // others need a network
				checkLink(t, anchors, page, m[1])
			}
		}
	}
	units, err := fs.Glob(os.DirFS("."), "daemons/dist/systemd/*")
	if err != nil || len(units) == 0 {
		t.Fatalf("no units: %v", err)
	}
	for _, file := range append(sources(t), units...) {
		for _, link := range linkToForge.FindAllString(read(t, file), -1) {
			checkLink(t, anchors, file, link)
		}
	}
}

// checkLink reports a link of a file that leads nowhere.
func checkLink(t *testing.T, anchors map[string]map[string]bool, file, link string) {
	t.Helper()
	name, to, _ := strings.Cut(link, "#")
	target := path.Join(path.Dir(file), name)
	switch rest, ours := strings.CutPrefix(name, forge); {
	case ours:
		target = rest
	case name == "":
		target = file
	}
	if _, err := os.Stat(target); err != nil || !fs.ValidPath(target) {
		t.Errorf("%s links to %s, which is not there: %v", file, link, err)
		return
	}
	if to == "" {
		return
	}
	if anchors[target] == nil {
		anchors[target] = anchorsOf(prose(t, target))
	}
	if !anchors[target][to] {
		t.Errorf("%s links to %s: %s has no such heading", file, link, target)
	}
}

// anchorsOf returns the anchors that the forge makes of a page's headings.
func anchorsOf(text string) map[string]bool {
	all := make(anchor.Page)
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		all.Add(m[1])
	}
	return all
}

// prose returns a page without its blocks of code.
func prose(t *testing.T, page string) string {
	t.Helper()
	return block.ReplaceAllString(read(t, page), "")
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestAnchors: an anchor is what GitHub makes of a heading.
func TestAnchors(t *testing.T) {
	got := anchorsOf("# A page\n## In a cloud, `--ptp` & [more](x.md)\n## Again\n## Again\n### Über_uns 2.0\n")
	for _, want := range []string{"a-page", "in-a-cloud---ptp--more", "again", "again-1", "über_uns-20"} {
		if !got[want] {
			t.Errorf("no anchor %s: %v", want, got)
		}
	}
}

// TestNamedTestsExist: a page that names a test as evidence names one that exists. CHANGELOG.md tells of the past.
func TestNamedTestsExist(t *testing.T) {
	named := regexp.MustCompile(`\bTest[A-Z]\w+`)
	var tests []string
	eachFunction(t, func(_ *token.FileSet, f *ast.FuncDecl) { tests = append(tests, f.Name.Name) })
	for _, page := range pages(t) {
		for _, name := range named.FindAllString(read(t, page), -1) {
			begins := func(test string) bool { return strings.HasPrefix(test, name) } // as go test -run
			if page != "CHANGELOG.md" && !slices.ContainsFunc(tests, begins) {
				t.Errorf("%s names %s, which does not exist", page, name)
			}
		}
	}
}

// TestEveryPageIsListed: docs/README.md leads to each page, and docs/adr/README.md to each decision by its title.
func TestEveryPageIsListed(t *testing.T) {
	index, decisions := read(t, "docs/README.md"), read(t, "docs/adr/README.md")
	title := regexp.MustCompile(`^# (?:ADR )?0*(\d+)[.:]? (.*)\n`)
	for _, page := range pages(t) {
		name := path.Base(page)
		switch {
		case name == "README.md":
		case path.Dir(page) == "docs" && !strings.Contains(index, "]("+name+")"):
			t.Errorf("docs/README.md does not list %s", page)
		case path.Dir(page) == "docs/adr":
			m := title.FindStringSubmatch(read(t, page))
			if m == nil {
				t.Errorf("%s does not begin with its number and title", page)
			} else if want := fmt.Sprintf("- %s: [%s](%s)\n", m[1], m[2], name); !strings.Contains(decisions, want) {
				t.Errorf("docs/adr/README.md lacks the line\n%s", want)
			}
		}
	}
}

// TestTestedVersions: the page of what we test with has the versions that the modules of the labs pin.
func TestTestedVersions(t *testing.T) {
	var pinned strings.Builder
	for _, pattern := range []string{"test/*/go.mod", "test/labs/*/go.mod"} {
		found, err := fs.Glob(os.DirFS("."), pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %q, %v", pattern, found, err)
		}
		for _, file := range found {
			pinned.WriteString(read(t, file) + "\n")
		}
	}
	rows := regexp.MustCompile("`([a-z0-9./-]+ v[0-9][^`]*)`").FindAllStringSubmatch(read(t, "docs/tested.md"), -1)
	if len(rows) == 0 {
		t.Error("docs/tested.md names no module")
	}
	for _, m := range rows {
		if !strings.Contains(pinned.String(), "require "+m[1]) {
			t.Errorf("docs/tested.md says %s, which no go.mod below test pins", m[1])
		}
	}
}
