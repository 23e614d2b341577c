// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package state

import (
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/spec"
)

func open(t *testing.T) *Dir {
	t.Helper()
	base := filepath.Join(t.TempDir(), "patchbay")
	s, err := Open(base, "docker")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }
func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }

// full returns an endpoint with every field set.
func full() *Endpoint {
	return &Endpoint{
		ID: strings.Repeat("e", 64), Network: strings.Repeat("d", 64), Boot: "b",
		Phase: Joined, Post: Done, Ports: Doing,
		Wanted: cnm.Interface{Address: prefix("10.1.0.5/24"), AddressIPv6: prefix("fd00::5/64"), MacAddress: "02:00:00:00:00:01"},
		Leased: true, Args: map[string]string{"K": "V"}, IfName: "lan0",
		Published: []Port{{Proto: 6, Port: 80, HostIP: addr("127.0.0.1"), HostPort: 8080, Chosen: true}},
		Asked:     []cnm.PortBinding{{Proto: 6, Port: 80, HostPort: 8000, HostPortEnd: 9000}},
		Hold:      "/run/patchbay/docker/netns/e", Result: &spec.Result{IPs: []spec.IPConfig{{Address: prefix("10.1.0.5/24"), Gateway: addr("10.1.0.1")}}},
		Kernel: &Snapshot{
			Name: "eth0", MAC: "02:00:00:00:00:01", MTU: 1400, Alias: "patchbay:x", Addrs: []netip.Prefix{prefix("10.1.0.5/24")},
			Routes:     []Route{{Dst: prefix("0.0.0.0/0"), GW: addr("10.1.0.1"), Src: addr("10.1.0.5"), Table: 254, Metric: 7, MTU: 1300, AdvMSS: 1200, Scope: 253, Protocol: 4, OnLink: true}},
			Neighbours: []Neighbour{{addr("10.1.0.1"), "02:00:00:00:00:02"}},
		},
		Link: "pb0", Sandbox: "/var/run/docker/netns/x", SandboxID: netns.ID{Dev: 1, Ino: 2},
		PostAt: Where{"/x", "eth1"}, PortsAt: Where{"/x", "eth1"}, Container: "c", Name: "web",
	}
}

func TestEndpointSurvives(t *testing.T) {
	s, e := open(t), full()
	must(t, s.Endpoints.Save(e))
	again, err := Open(filepath.Dir(s.Path()), "docker")
	must(t, err)
	got, err := again.Endpoints.Get(e.ID)
	must(t, err)
	same := cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })
	if d := cmp.Diff(e, got, cmp.AllowUnexported(Endpoint{}), same, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); d != "" {
		t.Error(d)
	}
	must(t, s.Endpoints.Drop(e.ID))
	must(t, s.Endpoints.Drop(e.ID))
	if _, err := s.Endpoints.Get(e.ID); !errors.Is(err, ErrUnknown) {
		t.Errorf("after drop: %v", err)
	}
}

// TestEndpointHasAllFields checks that the file has every field. A fact without a field in the
// file would be lost with the process.
func TestEndpointHasAllFields(t *testing.T) {
	data, err := json.Marshal(full())
	must(t, err)
	var keys map[string]any
	must(t, json.Unmarshal(data, &keys))
	for key, v := range keys {
		if v == nil || v == "" {
			t.Errorf("the test leaves %q empty", key)
		}
	}
}

func TestOtherKinds(t *testing.T) {
	s := open(t)
	must(t, s.Networks.Save(&Network{ID: "n", Config: json.RawMessage(`{}`)}))
	must(t, s.Pools.Save(&Pool{ID: "p", Config: json.RawMessage(`{}`), Prefix: prefix("10.1.0.0/16")}))
	must(t, s.Leases.Save(&Allocation{ID: "l", Config: json.RawMessage(`{}`), Wanted: []netip.Addr{addr("fd00::1")}}))
	nets, err := s.Networks.List()
	must(t, err)
	ls, err := s.Leases.List()
	must(t, err)
	pool, err := s.Pools.Get("p")
	must(t, err)
	if len(nets) != 1 || len(ls) != 1 || pool.Prefix != prefix("10.1.0.0/16") {
		t.Errorf("%v %v %v", nets, ls, pool)
	}
	must(t, errors.Join(s.Networks.Drop("n"), s.Pools.Drop("p"), s.Leases.Drop("l")))
	if nets, err = s.Networks.List(); err != nil || len(nets) != 0 {
		t.Errorf("%v %v", nets, err)
	}
}

func TestNamesStayInside(t *testing.T) {
	s := open(t)
	for _, id := range []string{"", ".", "..", "../x", "a/b", "~", "x~", "a\x00b", "ä", strings.Repeat("a", 129)} {
		if err := s.Endpoints.Save(&Endpoint{ID: id}); err == nil {
			t.Errorf("%q was taken", id)
		}
		if _, err := s.Endpoints.Get(id); err == nil || errors.Is(err, ErrUnknown) {
			t.Errorf("%q: %v", id, err)
		}
	}
}

// TestKilledWrite leaves a temporary file of a killed write. It is not read, and does not disturb
// the next write.
func TestKilledWrite(t *testing.T) {
	s, e := open(t), full()
	path := filepath.Join(s.Path(), endpoints, e.ID)
	must(t, os.WriteFile(path+"~", []byte(`{"id":`), 0o600))
	if all, err := s.Endpoints.List(); err != nil || len(all) != 0 {
		t.Errorf("%v %v", all, err)
	}
	must(t, s.Endpoints.Save(e))
	all, err := s.Endpoints.List()
	if err != nil || len(all) != 1 {
		t.Errorf("%v %v", all, err)
	}
	must(t, os.WriteFile(path+"~", nil, 0o600))
	must(t, s.Endpoints.Drop(e.ID))
	if left, _ := os.ReadDir(filepath.Dir(path)); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestTornFileDoesNotHideOthers(t *testing.T) {
	s := open(t)
	must(t, s.Endpoints.Save(full()))
	must(t, os.WriteFile(filepath.Join(s.Path(), endpoints, "torn"), nil, 0o600))
	all, err := s.Endpoints.List()
	must(t, os.WriteFile(filepath.Join(s.Path(), networks, "later"), []byte(`{"schema":2}`), 0o600))
	if _, err := s.Networks.Get("later"); err == nil || !strings.Contains(err.Error(), "schema 2") {
		t.Errorf("a later schema: %v", err)
	}
	if len(all) != 1 || err == nil || !strings.Contains(err.Error(), "torn") {
		t.Errorf("%v %v", all, err)
	}
}

// TestKeep checks that after Keep a list does not read the disk again, and has the objects that
// were written through the store.
func TestKeep(t *testing.T) {
	s := open(t)
	must(t, s.Endpoints.Save(&Endpoint{ID: "a"}))
	s.Keep()
	_, err := s.Endpoints.List()
	must(t, err)
	b := &Endpoint{ID: "b", Phase: Created}
	must(t, s.Endpoints.Save(b))
	b.Phase = Joined // never saved
	must(t, os.Remove(filepath.Join(s.Path(), endpoints, "a")))
	all, err := s.Endpoints.List()
	must(t, err)
	if len(all) != 2 || all[0].ID != "a" || all[1].Phase != Created {
		t.Errorf("%+v", all)
	}
	must(t, s.Endpoints.Drop("a"))
	if all, err = s.Endpoints.List(); err != nil || len(all) != 1 {
		t.Errorf("after drop: %v %v", all, err)
	}
	must(t, os.Rename(filepath.Join(s.Path(), endpoints), filepath.Join(s.Path(), "gone")))
	if s.Endpoints.Save(b) == nil {
		t.Error("saved into a directory that is gone")
	}
	if _, err := s.Endpoints.List(); err == nil {
		t.Error("what was kept stands for what could not be written")
	}
}

func TestKeepTogether(t *testing.T) {
	s := open(t)
	s.Keep()
	var all sync.WaitGroup
	for _, id := range []string{"a", "b", "c", "d"} {
		all.Go(func() {
			for range 20 {
				must(t, s.Endpoints.Save(&Endpoint{ID: id}))
				if _, err := s.Endpoints.List(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if list, err := s.Endpoints.List(); err != nil || len(list) != 4 {
		t.Errorf("%v %v", list, err)
	}
}

// TestKeepTorn makes one file unreadable. It hides no other file, and is read again the next time.
func TestKeepTorn(t *testing.T) {
	s := open(t)
	s.Keep()
	must(t, s.Endpoints.Save(full()))
	torn := filepath.Join(s.Path(), endpoints, "torn")
	must(t, os.WriteFile(torn, nil, 0o600))
	for range 2 {
		if all, err := s.Endpoints.List(); len(all) != 1 || err == nil {
			t.Errorf("%v %v", all, err)
		}
	}
	must(t, os.Remove(torn))
	if all, err := s.Endpoints.List(); len(all) != 1 || err != nil {
		t.Errorf("%v %v", all, err)
	}
}

func TestForRootAlone(t *testing.T) {
	s := open(t)
	must(t, s.Endpoints.Save(full()))
	for path, want := range map[string]os.FileMode{s.Path(): 0o700, filepath.Join(s.Path(), endpoints, full().ID): 0o600} {
		fi, err := os.Stat(path)
		if err != nil || fi.Mode().Perm() != want {
			t.Errorf("%s: %v %v", path, fi.Mode(), err)
		}
	}
	must(t, os.Chmod(s.Path(), 0o777))
	if _, err := Open(filepath.Dir(s.Path()), "docker"); err == nil {
		t.Error("took a directory that everybody may write to")
	}
}

// TestLargest saves an object that would be too large to be read again. It is not written, and
// the old file stays. The caller undoes its work.
func TestLargest(t *testing.T) {
	s, e := open(t), full()
	must(t, s.Endpoints.Save(e))
	port := cnm.PortBinding{Proto: 17, Port: 40000, HostPort: 40000, HostPortEnd: 40000}
	for _, c := range []struct{ ports, kept int }{{60000, 60000}, {300000, 60000}} {
		e.Asked = slices.Repeat([]cnm.PortBinding{port}, c.ports)
		if err := s.Endpoints.Save(e); (err != nil) != (c.kept < c.ports) || err != nil && !errors.Is(err, errLarge) {
			t.Errorf("%d ports: %v", c.ports, err)
		}
		if got, err := s.Endpoints.Get(e.ID); err != nil || len(got.Asked) != c.kept {
			t.Errorf("%d ports are read as %d, %v", c.ports, len(got.Asked), err)
		}
	}
}

// TestEarlierFiles reads files of earlier versions, which have more fields.
func TestEarlierFiles(t *testing.T) {
	s := open(t)
	for path, text := range map[string]string{
		"networks/n":  `{"schema":1,"id":"n","config":{},"hash":"x","ipv4":[{"AddressSpace":"null","Pool":"0.0.0.0/0"}],"ipv6":[],"since":"2026-01-02T03:04:05Z"}`,
		"endpoints/e": `{"schema":1,"id":"e","network":"n","since":"2026-01-02T03:04:05Z","phase":"joined"}`,
	} {
		must(t, os.WriteFile(filepath.Join(s.Path(), path), []byte(text), 0o600))
	}
	n, err := s.Networks.Get("n")
	e, err2 := s.Endpoints.Get("e")
	if err = errors.Join(err, err2); err != nil || n.Since.IsZero() || e.Phase != Joined {
		t.Errorf("%+v %+v %v", n, e, err)
	}
}
