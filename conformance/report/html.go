// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	_ "embed"
	"html/template"
	"io"
)

//go:embed page.html
var page string

// HTML writes one page that needs no other file.
func HTML(w io.Writer, all []Plugin) error {
	t, err := template.New("page").Funcs(template.FuncMap{"shell": Shell}).Parse(page)
	if err != nil {
		return err
	}
	return t.Execute(w, all)
}
