// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"html/template"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/renderer/html"
	"github.com/yuin/goldmark/text"

	"github.com/patchbay-net/patchbay/internal/test/anchor"
)

// The pages are ours, so HTML in them stays: the marks around generated tables.
var markdown = goldmark.New(goldmark.WithExtensions(extension.GFM), goldmark.WithParserOptions(parser.WithAutoHeadingID()),
	goldmark.WithRendererOptions(html.WithUnsafe()))

// page is one page, parsed.
type page struct {
	name, title string
	source      []byte
	tree        ast.Node
	anchors     anchor.Page
}

// ids gives headings the anchors that the forge gives them.
type ids struct{ anchor.Page }

func (i ids) Generate(heading []byte, _ ast.NodeKind) []byte { return []byte(i.Add(string(heading))) }
func (i ids) Put([]byte)                                     {}

func parse(name string, source []byte) *page {
	p := &page{name: name, title: name, source: source, anchors: make(anchor.Page)}
	p.tree = markdown.Parser().Parse(text.NewReader(source), parser.WithContext(parser.NewContext(parser.WithIDs(ids{p.anchors}))))
	if h, ok := p.tree.FirstChild().(*ast.Heading); ok {
		p.title = plain(h, source)
	}
	return p
}

// plain is the text of a node without its marks.
func plain(n ast.Node, source []byte) string {
	var b strings.Builder
	_ = ast.Walk(n, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if t, ok := n.(*ast.Text); ok && entering {
			b.Write(t.Segment.Value(source))
		}
		return ast.WalkContinue, nil
	})
	return b.String()
}

// links are where the page's links and pictures lead, to be changed.
func (p *page) links() (all []*[]byte) {
	_ = ast.Walk(p.tree, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		switch n := n.(type) {
		case *ast.Link:
			if entering {
				all = append(all, &n.Destination)
			}
		case *ast.Image:
			if entering {
				all = append(all, &n.Destination)
			}
		}
		return ast.WalkContinue, nil
	})
	return all
}

// html is the whole page with the navigation.
func (p *page) html(layout *template.Template, nav []group) ([]byte, error) {
	var body, out bytes.Buffer
	if err := markdown.Renderer().Render(&body, p.source, p.tree); err != nil {
		return nil, err
	}
	err := layout.Execute(&out, map[string]any{
		"Title": p.title, "Top": relative(p.name, ""), "Nav": seenFrom(nav, p.name), "Source": forge + p.name,
		"Body": template.HTML(body.String()), //nolint:gosec // the pages are ours
	})
	return out.Bytes(), err
}
