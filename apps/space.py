"""The demo as a Hugging Face Space: see README.md beside it for what goes into its repository."""

from vldebias.cli.apps import page

compare = page("compare.page")
demo = compare.build_demo(page("compare.engine").Engine())

if __name__ == "__main__":
    demo.queue(max_size=64).launch(
        server_name="0.0.0.0",
        css=compare.style(),
        theme=page("serving").theme(),
        max_file_size="10mb",
        ssr_mode=False,
        footer_links=[],
    )
