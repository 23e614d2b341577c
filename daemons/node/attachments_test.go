// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/daemons/node/policies"
)

// A record that cannot be read, and an address that two attachments have, are reported. The others count.
func TestAttachments(t *testing.T) {
	l := &policyLab{&lab{T: t, dir: t.TempDir()}}
	if list, of, ok, err := attachments(l.dir); !ok || err != nil || len(list)+len(of.addrs) > 0 {
		t.Errorf("without records: %v, %v, %v, %v", list, of, ok, err)
	}
	r := l.added("web-0", "10.244.1.5", "fd00::5")
	l.added("web-1", "10.244.1.6")
	l.added("web-2", "10.244.1.6")
	torn := l.added("web-3", "10.244.1.7")
	must(t, os.WriteFile(filepath.Join(l.dir, "attachments", "pods", string(torn.Owner)+"."+policyPlugin), []byte(`{"schema":1`), 0o600))
	must(t, os.WriteFile(filepath.Join(l.dir, "attachments", "pods", string(r.Owner)+".ptp"), []byte(`{`), 0o600))
	list, of, ok, err := attachments(l.dir)
	var names []string
	for _, a := range list {
		names = append(names, a.Name)
	}
	slices.Sort(names)
	if !ok || !slices.Equal(names, []string{"web-0", "web-1", "web-2"}) {
		t.Errorf("got %v, %v", names, ok)
	}
	if of.addrs[netip.MustParseAddr("fd00::5")] != r.Owner || of.addrs[netip.MustParseAddr("10.244.1.6")] != "" {
		t.Errorf("the owners are %v", of.addrs)
	}
	for _, want := range []string{"two attachments have the address 10.244.1.6", string(torn.Owner), "delete the pod"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in %v", want, err)
		}
	}
	i := slices.IndexFunc(list, func(a policies.Attached) bool { return a.Name == "web-0" })
	if a := list[i]; a.Namespace != "shop" || a.UID != "uid-web-0" || a.Labels != nil || len(a.Addresses) != 2 {
		t.Errorf("web-0 is %+v", a)
	}
}
