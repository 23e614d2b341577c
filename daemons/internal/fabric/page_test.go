// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"bytes"
	"testing"
)

// Each table has columns of its own. Names from other machines move no cursor.
func TestPage(t *testing.T) {
	p := Page{Intro: "the store is away"}
	p.Row("HOST", "STATE")
	p.Row("a\x1b[2J", "present")
	p.Row()
	p.Row("BLOCK", "HOST")
	p.Row("10.200.1.0/24", "a")
	p.Wrong("on this host", "one\x1b\ntwo")
	var out bytes.Buffer
	if err := p.Print(&out); err != nil {
		t.Fatal(err)
	}
	want := "the store is away\n\n" +
		"HOST      STATE\n" +
		"a\\x1b[2J  present\n\n" +
		"BLOCK          HOST\n" +
		"10.200.1.0/24  a\n\n" +
		"wrong on this host: one\\x1b\ntwo\n"
	if out.String() != want {
		t.Errorf("%s\nwant\n%s", &out, want)
	}
}
