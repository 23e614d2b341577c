// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package dhcprpc

import (
	"bytes"
	"context"
	"encoding/gob"
	"encoding/json"
	"errors"
	"net"
	"net/rpc"
	"path/filepath"
	"testing"
	"time"
)

func TestNobodyThere(t *testing.T) {
	if _, err := Dial(t.Context(), filepath.Join(t.TempDir(), "absent")); !errors.Is(err, ErrDial) {
		t.Error(err)
	}
}

// A keeper does not answer. The call ends with the caller's context.
func TestSilence(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // the test ends
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := Dial(ctx, path); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

// answer has the fields of an answer of the reference's daemon. gob sends their names, so it is the same on the wire.
type answer struct {
	CNIVersion string
	IPs        []struct {
		Address net.IPNet
		Gateway net.IP
	}
	Routes []struct {
		Dst                   net.IPNet
		GW                    net.IP
		Priority, MTU, AdvMSS int
		Table, Scope          *int
	}
	DNS struct {
		Nameservers []string
		Domain      string
		Search      []string
	}
}

func FuzzDecode(f *testing.F) {
	var a answer
	text := `{"CNIVersion": "1.0.0", "IPs": [{"Address": {"IP": "10.0.0.7", "Mask": "/////w=="}, "Gateway": "10.0.0.1"}],
		"Routes": [{"Dst": {"IP": "0.0.0.0", "Mask": "AAAAAA=="}, "GW": "10.0.0.1", "Priority": 7, "MTU": 1400, "Table": 100, "Scope": 253}],
		"DNS": {"Nameservers": ["10.0.0.1", "10.0.0.2"], "Domain": "lan", "Search": ["a.lan"]}}`
	var b bytes.Buffer
	enc := gob.NewEncoder(&b)
	if err := errors.Join(json.Unmarshal([]byte(text), &a), enc.Encode(rpc.Response{ServiceMethod: Allocate, Seq: 3, Error: "x"}), enc.Encode(a)); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		d := newDecoder(bytes.NewReader(data))
		for range 10 {
			r, err := d.next()
			if err != nil {
				return
			}
			_, _ = decodeResult(r)
		}
	})
}
