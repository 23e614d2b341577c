// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package attached

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/npwg"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/sealed"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func plan(id string) *npwg.Plan {
	return &npwg.Plan{
		Network: "pods", ContainerID: id, IfName: "eth0", Pod: npwg.Pod{Namespace: "shop", Name: "web", UID: "5f0c"}, Args: "A=1", Path: []string{"/opt/cni/bin"},
		Default: json.RawMessage(`{"cniVersion":"1.1.0"}`),
		Interfaces: []npwg.Interface{{
			Definition: "shop/a", Network: "a", IfName: "net1", CNIVersion: "1.1.0", Plugins: []json.RawMessage{[]byte(`{"type":"x"}`)},
			Ask: npwg.Ask{IPs: []string{"10.0.0.7"}}, State: npwg.Done, Result: json.RawMessage(`{"cniVersion":"1.1.0"}`),
		}},
	}
}

// What was written is read, listed and removed.
func TestRoundTrip(t *testing.T) {
	p := paths.Paths{State: t.TempDir()}
	one, two := plan("c1"), plan("c2")
	if got, err := Read(p, Owner(one)); got != nil || err != nil {
		t.Errorf("without a plan: %+v, %v", got, err)
	}
	must(t, Write(p, one))
	must(t, Write(p, two))
	if got, err := Read(p, Owner(one)); err != nil || !reflect.DeepEqual(got, one) {
		t.Errorf("%+v, %v\nwant %+v", got, err, one)
	}
	must(t, os.WriteFile(filepath.Join(p.State, directory, "half~"), nil, 0o600)) // of a killed writer
	if list, errs := List(p); len(list) != 2 || len(errs) > 0 || Since(p, Owner(one)).IsZero() {
		t.Errorf("%d plans, %v", len(list), errs)
	}
	must(t, Remove(p, Owner(one)))
	must(t, Remove(p, Owner(one)))
	if list, errs := List(p); len(list) != 1 || len(errs) > 0 || list[0].ContainerID != "c2" {
		t.Errorf("%+v, %v", list, errs)
	}
}

// Plans are in the order in which they were last written.
func TestInOrder(t *testing.T) {
	p := paths.Paths{State: t.TempDir()}
	var want []string
	for i, name := range []string{"c3", "c1", "c2"} {
		must(t, Write(p, plan(name)))
		at := time.Unix(int64(1000+i), 0)
		must(t, os.Chtimes(path(p, Owner(plan(name))), at, at))
		want = append(want, name)
	}
	list, errs := List(p)
	InOrder(p, list)
	var got []string
	for _, plan := range list {
		got = append(got, plan.ContainerID)
	}
	if !slices.Equal(got, want) || len(errs) > 0 {
		t.Errorf("%q, %v, want %q", got, errs, want)
	}
}

// A plan that was cut short, and one under another owner, says nothing. A newer format is another error, so that an older program does not
// remove the plan.
func TestDamage(t *testing.T) {
	p := paths.Paths{State: t.TempDir()}
	one := plan("c1")
	must(t, Write(p, one))
	file := path(p, Owner(one))
	data, err := os.ReadFile(file)
	must(t, err)
	other := owner.Of("pods", "c3", "eth0")
	must(t, os.WriteFile(path(p, other), data, 0o600))
	if _, err := Read(p, other); !errors.Is(err, sealed.ErrDamaged) {
		t.Errorf("another's plan: %v", err)
	}
	must(t, os.WriteFile(file, data[:len(data)-1], 0o600))
	if _, err := Read(p, Owner(one)); !errors.Is(err, sealed.ErrDamaged) {
		t.Errorf("cut short: %v", err)
	}
	if list, errs := List(p); len(list) > 0 || len(errs) != 2 {
		t.Errorf("%+v, %v", list, errs)
	}
	must(t, os.WriteFile(file, sealed.Seal(kind, schema+1, []byte("{}")), 0o600))
	if _, err := Read(p, Owner(one)); err == nil || errors.Is(err, sealed.ErrDamaged) {
		t.Errorf("a newer format: %v", err)
	}
	must(t, os.Chmod(filepath.Join(p.State, directory), 0o777))
	for _, err := range []error{Write(p, one), Remove(p, Owner(one)), Ready(p)} {
		if err == nil {
			t.Error("a directory that others may write is used")
		}
	}
}
