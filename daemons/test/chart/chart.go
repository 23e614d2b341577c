// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package chart fills in the Helm chart of the Kubernetes agent for tests, which need no Helm:
// the chart uses no function that Helm adds to Go's templates.
package chart

import (
	"bytes"
	"os"
	"testing"
	"text/template"

	"sigs.k8s.io/yaml"

	"github.com/patchbay-net/patchbay/internal/test/reftest"
)

// Render returns the manifest that the chart makes. change gets the chart's own values; nil
// leaves them as they are.
func Render(t testing.TB, change func(values map[string]any)) string {
	t.Helper()
	return render(t, "patchbay.yaml", change)
}

// Notes returns what helm says of the release patchbay when it is installed.
func Notes(t testing.TB, change func(values map[string]any)) string {
	t.Helper()
	return render(t, "NOTES.txt", change)
}

func render(t testing.TB, file string, change func(values map[string]any)) string {
	t.Helper()
	root, err := reftest.Root()
	if err != nil {
		t.Fatal(err)
	}
	dir := root + "/daemons/dist/kubernetes/chart/"
	text, err := os.ReadFile(dir + "values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]any{}
	if err := yaml.Unmarshal(text, &values); err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(values)
	}
	if err := Validate(values); err != nil {
		t.Fatal(err)
	}
	tmpl, err := template.New(file).Option("missingkey=error").ParseFiles(dir + "templates/" + file)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := tmpl.Execute(&out, map[string]any{"Values": values, "Release": map[string]any{"Name": "patchbay"}}); err != nil {
		t.Fatal(err)
	}
	return out.String()
}
