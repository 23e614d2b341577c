// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/cli/doctor"
	"github.com/patchbay-net/patchbay/cli/gc"
	"github.com/patchbay-net/patchbay/cli/netfile"
	"github.com/patchbay-net/patchbay/cli/netmap"
	"github.com/patchbay-net/patchbay/cli/why"
	"github.com/patchbay-net/patchbay/internal/terminal"
	"github.com/patchbay-net/patchbay/internal/trace"
	"github.com/patchbay-net/patchbay/spec"
)

// TestShapes compares the table of JSON documents in docs/cli.md with the code.
func TestShapes(t *testing.T) {
	page, err := os.ReadFile("../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []struct {
		document string
		of       any
	}{
		{"`ps --json`: an array", localAttachment{}},
		{"`inspect`: an array", inspected{}},
		{"`check --all --json`: an array", finding{}},
		{"`gc --json`: an array", gc.Candidate{}},
		{"`network ls --json`: an array", networkInfo{}},
		{"of a file that cannot be read", brokenInfo{}},
		{"`network inspect`: an array", inspectedNetwork{}},
		{"`network rm --json`: an array", netfile.Removal{}},
		{"`doctor --json`", doctor.Report{}},
		{"of a finding", doctor.Finding{}},
		{"`map --json`", netmap.Map{}},
		{"of a network", netmap.Network{}},
		{"of an attachment", netmap.Attached{}},
		{"of another host", netmap.Host{}},
		{"`explain --json`", explanation{}},
		{"of a pod: an array", attachedPod{}},
		{"of a Service", explainedService{}},
		{"of its frontend", explainedFrontend{}},
		{"`why --json`", why.Answer{}},
		{"of a packet", why.Packet{}},
		{"of a step", why.Step{}},
		{"of a reason", why.Because{}},
		{"of a translation by a Service", why.Translation{}},
		{"of an endpoint", why.Destination{}},
		{"`why --json SERVICE`", why.Service{}},
		{"of a frontend", why.Front{}},
		{"of its clients", why.Clients{}},
		{"`trace --json`", trace.Report{}},
		{"of what ends a packet", trace.Finding{}},
		{"of an expectation", trace.Expectation{}},
		{"of a step of a packet", trace.Step{}},
		{"`repair --json`", repaired{}},
		{"`plugin list --json`: an array", pluginInfo{}},
		{"`install --json`", installed{}},
		{"`demo --json`", demoReport{}},
		{"`version --json`", terminal.Build{}},
		{"an error", spec.Error{}},
	} {
		row := "| " + s.document + " | `" + strings.Join(keys(reflect.TypeOf(s.of)), "`, `") + "` |\n"
		if !strings.Contains(string(page), row) {
			t.Errorf("docs/cli.md has no line\n%s", row)
		}
	}
}

// keys returns the keys of a type's JSON object, including the keys of embedded structs.
func keys(t reflect.Type) (names []string) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-":
		case name != "":
			names = append(names, name)
		case f.Anonymous && f.Type.Kind() == reflect.Pointer:
			names = append(names, keys(f.Type.Elem())...)
		case f.Anonymous:
			names = append(names, keys(f.Type)...)
		}
	}
	return names
}
