// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"path"

	"github.com/yuin/goldmark/ast"
	east "github.com/yuin/goldmark/extension/ast"
)

// group is a table of docs/README.md: its first header is the title, and the links of its first column are the entries.
type group struct {
	Title   string
	Entries []entry
}

// entry is one link of the navigation. Address is of the site, and from a page after seenFrom.
type entry struct {
	Title, Address string
	Here           bool
}

// navigation reads the index of pages, whose links are already the site's.
func (s *site) navigation() (groups []group, err error) {
	const index = "docs/README.md"
	p := s.pages[index]
	if p == nil {
		return nil, errors.New("no docs/README.md, which lists the pages")
	}
	_ = ast.Walk(p.tree, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		switch n := n.(type) {
		case *east.TableHeader:
			if entering {
				groups = append(groups, group{Title: plain(n.FirstChild(), p.source)})
			}
		case *east.TableRow:
			if entering {
				g := &groups[len(groups)-1]
				g.Entries = append(g.Entries, p.entries(n.FirstChild())...)
			}
			return ast.WalkSkipChildren, nil
		}
		return ast.WalkContinue, nil
	})
	if len(groups) == 0 {
		return nil, errors.New("docs/README.md has no table of pages")
	}
	return groups, nil
}

// entries are the links of a cell of the page.
func (p *page) entries(cell ast.Node) (all []entry) {
	for n := cell.FirstChild(); n != nil; n = n.NextSibling() {
		if l, ok := n.(*ast.Link); ok {
			all = append(all, entry{Title: plain(l, p.source), Address: path.Join(path.Dir(p.name), string(l.Destination))})
		}
	}
	return all
}

// seenFrom is the navigation with addresses from a page.
func seenFrom(nav []group, name string) (seen []group) {
	for _, g := range nav {
		here := group{Title: g.Title}
		for _, e := range g.Entries {
			here.Entries = append(here.Entries, entry{e.Title, relative(name, e.Address), e.Address == address(name)})
		}
		seen = append(seen, here)
	}
	return seen
}
