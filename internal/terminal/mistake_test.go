// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package terminal

import (
	"testing"

	"github.com/jessevdk/go-flags"
)

func TestMistake(t *testing.T) {
	type command struct {
		Port int `long:"port" short:"p"`
		Args struct {
			From, To string
		} `positional-args:"yes" required:"yes"`
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"ad"}, `no command "ad"; did you mean "add"?`},
		{[]string{"nonsense"}, `no command "nonsense"; the commands are add or check`},
		{[]string{"add", "--tea"}, `unknown flag "tea"`},
		{[]string{"add", "-p"}, `expected argument for flag "-p, --port"`},
		{[]string{"add"}, `the required arguments "From" and "To" were not provided`},
		{[]string{}, `Please specify one command of: add or check`},
	} {
		p := flags.NewNamedParser("x", flags.None)
		for _, name := range []string{"add", "check"} {
			if _, err := p.AddCommand(name, "", "", &command{}); err != nil {
				t.Fatal(err)
			}
		}
		_, err := p.ParseArgs(c.args)
		e, ok := err.(*flags.Error) //nolint:errorlint // the library's own
		if !ok {
			t.Fatalf("%q: %v", c.args, err)
		}
		if got := Mistake(e); got != c.want {
			t.Errorf("%q: %s, want %s", c.args, got, c.want)
		}
	}
}
