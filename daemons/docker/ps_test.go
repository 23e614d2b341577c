// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"encoding/json"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/daemons/docker/state"
)

func TestPS(t *testing.T) {
	base := t.TempDir()
	s, err := state.Open(base, "docker")
	must(t, err)
	must(t, s.Networks.Save(&state.Network{ID: strings.Repeat("d", 64), Config: []byte(`{}`), Options: map[string]string{optNetwork: "podnet"}}))
	must(t, s.Endpoints.Save(&state.Endpoint{
		ID: strings.Repeat("e", 64), Network: strings.Repeat("d", 64), Phase: state.Joined, Name: "web",
		Kernel: &state.Snapshot{Addrs: prefixes("10.1.0.5/24 fd01::5/64")},
		Published: []state.Port{
			{Proto: 6, Port: 80, HostPort: 49160, Chosen: true}, {Proto: 17, Port: 53, HostPort: 53, HostIP: netip.MustParseAddr("::1")},
		},
	}))
	must(t, s.Endpoints.Save(&state.Endpoint{ID: strings.Repeat("f", 64), Network: strings.Repeat("0", 64), Phase: state.Creating, Container: strings.Repeat("c", 64)}))
	must(t, s.Endpoints.Save(&state.Endpoint{ID: strings.Repeat("g", 64), Network: strings.Repeat("0", 64), Phase: state.Joined, Closed: true}))
	var out strings.Builder
	must(t, PS(&out, base, false))
	const want = `ENDPOINT      CONTAINER     NETWORK       PHASE     ADDRESSES         PORTS
eeeeeeeeeeee  web           podnet        joined    10.1.0.5,fd01::5  *:49160->80/tcp, [::1]:53->53/udp
ffffffffffff  cccccccccccc  000000000000  creating  -                 -
gggggggggggg  -             000000000000  failed    -                 -
`
	if out.String() != want {
		t.Errorf("got\n%s", out.String())
	}
	out.Reset()
	must(t, PS(&out, base, true))
	var list []endpointJSON
	must(t, json.Unmarshal([]byte(out.String()), &list))
	if len(list) != 3 || list[0].ID != strings.Repeat("e", 64) || list[0].Ports[1] != (portJSON{53, 53, "udp", netip.MustParseAddr("::1")}) ||
		list[1].ContainerID != strings.Repeat("c", 64) || list[2].Phase != "failed" {
		t.Errorf("got\n%s", out.String())
	}
}

// If no driver ever ran, PS shows nothing and makes nothing.
func TestPSOfNothing(t *testing.T) {
	base := filepath.Join(t.TempDir(), "patchbay")
	var out strings.Builder
	must(t, PS(&out, base, false))
	if !strings.HasPrefix(out.String(), "ENDPOINT") || strings.Count(out.String(), "\n") != 1 {
		t.Errorf("got\n%s", out.String())
	}
	out.Reset()
	must(t, PS(&out, base, true))
	if out.String() != "[]\n" {
		t.Errorf("as JSON: %s", out.String())
	}
	if _, err := os.Stat(base); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the state directory: %v", err)
	}
}
